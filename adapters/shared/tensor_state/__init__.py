"""Tensors as files of a checkpoint, whole and in shards."""
