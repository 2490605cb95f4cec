"""Adapters of the port ``Monitor``: they show or store the figures of a run."""
