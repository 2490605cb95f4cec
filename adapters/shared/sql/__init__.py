"""Connections to SQL databases, and the versions of their tables."""
