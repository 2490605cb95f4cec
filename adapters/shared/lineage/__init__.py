"""Emission of lineage events."""
