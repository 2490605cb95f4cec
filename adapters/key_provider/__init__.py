"""Adapters of the port ``KeyProvider``."""
