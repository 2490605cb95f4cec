"""Tokens on a disk: shards, arrays derived from them, and the folder that both lie in."""
