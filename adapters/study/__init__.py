"""Adapters of the port ``Study``."""
