"""Whether a model's layers are compiled."""

from __future__ import annotations

from typing import Literal

Compile = Literal["auto", "none", "default", "reduce-overhead", "max-autotune"]
