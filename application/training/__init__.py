"""The training loop and its commands."""
