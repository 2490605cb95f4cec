"""Adapters of the port ``DocumentEncoder``."""
