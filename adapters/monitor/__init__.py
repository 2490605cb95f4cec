"""Monitors: where the figures of a run go."""
