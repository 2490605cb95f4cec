"""Threads that work beside the loop."""
