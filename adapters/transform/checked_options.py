"""Checks of options that several transforms of records have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Any

from holdfast.adapters.transform.transform_options import unicode_text
from holdfast.domain.errors import ConfigurationError


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
