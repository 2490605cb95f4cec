"""Adapters of the port ``Transform``."""
