"""Names of built-in attention and loss implementations, which settings may use beside entry points."""

from __future__ import annotations

ATTENTION = ("sdpa", "eager", "varlen", "flex_attention", "flash_attention_2", "flash_attention_3")
LOSSES = ("auto", "chunked", "plain", "liger")
