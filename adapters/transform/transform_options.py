"""Checked options of the built-in transforms, and their fingerprint."""

from __future__ import annotations

import json
import re
from math import inf

from holdfast.domain.errors import ConfigurationError

_SURROGATE = re.compile("[\ud800-\udfff]")


def fingerprint_of(kind: str, version: int, **options: object) -> str:
    """Return the identity of a transform; ``version`` is increased when the same options give other texts."""
    return f"{kind} {version} {json.dumps(options, sort_keys=True)}"


def whole_number(kind: str, name: str, value: object) -> int:
    """Return ``value`` as an int if it is a whole number of at least 0; it may be written as 1e3.

    Raises ``ConfigurationError`` for anything else, such as True or "5".
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf and value == int(value):
        return int(value)
    msg = f"{name} of transform '{kind}' must be a whole number from 0 on, not {value!r}"
    raise ConfigurationError(msg)


def unicode_text(kind: str, name: str, value: object) -> str:
    """Return ``value`` if it is text that UTF-8 can encode; raises ``ConfigurationError`` for anything else."""
    if isinstance(value, str) and not _SURROGATE.search(value):
        return value
    what = "valid Unicode text (in quotes, if it looks like something else)"
    msg = f"{name} of transform '{kind}' must be {what}, not {value!r}"
    raise ConfigurationError(msg)
