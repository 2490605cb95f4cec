"""Copies of checkpoints at a place that outlives the machine."""
