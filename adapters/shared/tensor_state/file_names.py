"""Names of files in a checkpoint that code without torch needs too."""

from __future__ import annotations

MODEL_FILE = "model.safetensors"
"""The trained weights, which ``from_pretrained`` loads."""

AVERAGE_FILE = "ema.safetensors"
"""The average of the weights that ``optimizer.ema`` keeps, in the form of ``MODEL_FILE``."""
