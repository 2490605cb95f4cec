"""Measurements of the machine and the search for a micro-batch."""
