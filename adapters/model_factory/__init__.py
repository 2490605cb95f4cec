"""Adapters of the port ``ModelFactory``."""
