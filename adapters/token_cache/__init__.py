"""Adapters of the port ``TokenCache``."""
