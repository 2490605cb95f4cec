"""Compilation of a model's layers."""

from __future__ import annotations

from typing import Literal

Compile = Literal["auto", "none", "default", "reduce-overhead", "max-autotune"]
