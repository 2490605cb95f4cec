"""The first stage: processes, folder and checkpoints of a run."""
