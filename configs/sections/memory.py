"""Activation checkpointing, which trades time for memory."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from holdfast.domain.sizes import size_in_bytes

_POLICY = re.compile(r"none|full|every:[1-9][0-9]*")
BUDGET = "budget:"


def _policy(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUDGET):
        size_in_bytes(value.removeprefix(BUDGET))
    elif isinstance(value, str) and not _POLICY.fullmatch(value):
        msg = f"is {value}: it must be none, full, every:N with N from 1, such as every:2, or budget:SIZE"
        raise ValueError(msg)
    return value


GradientCheckpointing = Annotated[str, Field(strict=True), BeforeValidator(_policy)]
