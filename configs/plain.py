"""Settings as plain data, for JSON and YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator


def to_plain(value: Any) -> Any:
    """Return ``value`` with sections as dicts, tuples as lists and paths as text; secrets stay as they are."""
    if isinstance(value, BaseModel):
        return {name: to_plain(getattr(value, name)) for name in _kind_first(type(value).model_fields)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _kind_first(names: Mapping[str, object]) -> list[str]:
    return sorted(names, key=lambda name: name != "kind")


def leaves(plain: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and value of everything that is not a mapping, and of empty mappings."""
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value
