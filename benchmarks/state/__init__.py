"""How long training waits for a checkpoint, and how fast one is written and restored."""
