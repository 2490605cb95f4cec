"""The device that a process computes on: its memory, processors and threads."""
