"""Adapters of the port ``DataSource``."""
