"""Tokens on a disk: shards, arrays derived from them, and their folder."""
