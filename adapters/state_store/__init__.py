"""State stores, which hold the checkpoints of a run."""
