"""State stores: where the checkpoints of a run are kept."""
