"""Adapters of the port ``TokenSource``."""
