"""What settings may name beside entry points of other packages, where both models and settings need to know it."""

from __future__ import annotations

ATTENTION = ("sdpa", "eager", "varlen", "flex_attention", "flash_attention_2", "flash_attention_3")
LOSSES = ("auto", "chunked", "plain", "liger")
