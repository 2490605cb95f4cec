"""The seventh stage: the loop with its handlers."""
