"""The sixth stage: the micro-batch and the length of a run."""
