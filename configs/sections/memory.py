"""What of memory is traded for time."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_POLICY = re.compile(r"none|full|every:[1-9][0-9]*")


def _policy(value: object) -> object:
    if isinstance(value, str) and not _POLICY.fullmatch(value):
        msg = f"is {value}: it must be none, full or every:N with N from 1, such as every:2"
        raise ValueError(msg)
    return value


GradientCheckpointing = Annotated[str, Field(strict=True), BeforeValidator(_policy)]
