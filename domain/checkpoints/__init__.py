"""Policies about checkpoints."""
