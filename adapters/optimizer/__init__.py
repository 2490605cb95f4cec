"""Adapters of the port ``Optimizer``."""
