"""Checked thresholds of the quality rules."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, TypeGuard

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def threshold(kind: str, name: str, value: object) -> float | None:
    """Return ``value`` if it is a number of at least 0, or None, which switches the rule off.

    Raises ``ConfigurationError`` for anything else.
    """
    if value is None or _is_number(value):
        return value
    msg = f"{name} of transform '{kind}' must be a number from 0 on, or null to switch the rule off, not {value!r}"
    raise ConfigurationError(msg)


def limits(kind: str, name: str, value: object) -> tuple[float | None, float | None]:
    """Return the least and the most of ``value``, a list of both; None switches either off.

    Raises ``ConfigurationError`` for anything else.
    """
    if isinstance(value, list | tuple) and len(value) == 2:
        return threshold(kind, name, value[0]), threshold(kind, name, value[1])
    msg = f"{name} of transform '{kind}' must be a list of the least and the most, not {value!r}"
    raise ConfigurationError(msg)


def switch(kind: str, name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; raises ``ConfigurationError`` for anything else."""
    if isinstance(value, bool):
        return value
    msg = f"{name} of transform '{kind}' must be true or false, not {value!r}"
    raise ConfigurationError(msg)


def marks(kind: str, name: str, value: object) -> Sequence[str]:
    """Return ``value`` if it is a list of texts, none of which is empty; raises ``ConfigurationError`` if not."""
    if isinstance(value, list | tuple | frozenset) and all(isinstance(each, str) and each for each in value):
        return sorted(value)
    msg = f"{name} of transform '{kind}' must be a list of texts that are not empty, not {value!r}"
    raise ConfigurationError(msg)


def thresholds_by_size(kind: str, name: str, value: object) -> Mapping[int, float]:
    """Return ``value``, which is a mapping of n, a number of words, to a threshold, by n in its order.

    None or an empty mapping switches the rules off. Raises ``ConfigurationError`` for anything else.
    """
    found = {}
    for size, limit in value.items() if isinstance(value, Mapping) else ():
        is_size = isinstance(size, int) and not isinstance(size, bool)
        number = size if is_size else int(size) if isinstance(size, str) and size.isdecimal() else 0
        if number < 1 or not _is_number(limit):
            break
        found[number] = limit
    if value is None or (isinstance(value, Mapping) and len(found) == len(value)):
        return found
    msg = (
        f"{name} of transform '{kind}' must map numbers of words from 1 on to numbers from 0 on, as in {{5: 0.15}}, "
        f"not {value!r}"
    )
    raise ConfigurationError(msg)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf
