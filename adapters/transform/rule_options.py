"""Checked thresholds of the quality rules."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any, TypeGuard

from holdfast.domain.errors import ConfigurationError


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


def finite_number(kind: str, name: str, value: object, *, least: float = -inf, most: float = inf) -> float:
    """Return ``value`` as a float if it is a finite number from ``least`` to ``most``, both included.

    Raises ``ConfigurationError`` for anything else, such as True or "0.5".
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and -inf < float(value) < inf and least <= float(value) <= most:  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    bounds = f" from {least:g} to {most:g}" if most < inf else f" from {least:g} on" if least > -inf else ""
    msg = f"{name} of transform '{kind}' must be a number{bounds}, not {value!r}"
    raise ConfigurationError(msg)


def one_of(kind: str, name: str, value: object, known: Collection[str]) -> str:
    """Return ``value`` if it is one of the texts ``known``; raises ``ConfigurationError`` for anything else."""
    if isinstance(value, str) and value in known:
        return value
    msg = f"{name} of transform '{kind}' must be one of {', '.join(known)}, not {value!r}"
    raise ConfigurationError(msg)


def list_of_texts(kind: str, name: str, value: object) -> tuple[str, ...]:
    """Return ``value`` as a tuple without repetitions if it is a list with at least one text, else raise.

    Raises ``ConfigurationError`` for anything else, such as a single text.
    """
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        return tuple(dict.fromkeys(unicode_text(kind, f"each of {name}", each) for each in value))
    msg = f"{name} of transform '{kind}' must be a list with at least one entry, not {value!r}"
    raise ConfigurationError(msg)


def some_of(kind: str, name: str, value: object, known: Collection[str]) -> tuple[str, ...]:
    """Return the entries of the list ``value`` in the order of ``known``.

    Raises ``ConfigurationError`` if it is no list of texts, is empty, or holds a text that is not among ``known``.
    """
    chosen = {one_of(kind, f"each of {name}", each, known) for each in list_of_texts(kind, name, value)}
    return tuple(each for each in known if each in chosen)


def mapping_of(kind: str, name: str, value: object, known: Collection[str]) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping whose keys are among ``known``, {} for None.

    Raises ``ConfigurationError`` for anything else.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for key in value:
            one_of(kind, f"each key of {name}", key, known)
        return value
    msg = f"{name} of transform '{kind}' must map some of {', '.join(known)} to values, not {value!r}"
    raise ConfigurationError(msg)
