"""Job files for the schedulers and launchers of several machines, rendered from typed values."""
