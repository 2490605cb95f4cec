"""Trained models in the formats of other programs: GGUF, torchao, and pruned weights."""
