"""Locations of pydantic's errors, as the paths that the user wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.configs.settings_catalog import kinds_of, settings_by_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]


def spoken(error: ErrorDetails, values: Mapping[str, Any]) -> Location:
    """Return the path of ``error`` in ``values`` without the kinds and types that pydantic puts between the keys."""
    place = error["loc"]
    kinds = 2 if len(place) > 1 and isinstance(place[1], int) else 1
    if kinds_of(str(place[0])):
        place = place[:kinds] + place[kinds + 1 :]
    path: list[str | int] = []
    below: Any = values
    for key in place[:-1] if error["type"] == "missing" else place:
        if isinstance(below, Mapping) and key in below:
            below = below[str(key)]
        elif isinstance(key, int):
            below = below[key] if isinstance(below, Sequence) and key < len(below) else None
        elif below is not None and ".".join(map(str, (*path, key))) not in settings_by_name():
            continue
        path.append(key)
    return (*path, place[-1]) if error["type"] == "missing" else tuple(path)


def by_place(errors: Iterable[ErrorDetails], values: Mapping[str, Any]) -> dict[Location, list[ErrorDetails]]:
    """Return the errors at each path: a value that may be of several types has one for each."""
    places: dict[Location, list[ErrorDetails]] = {}
    for error in errors:
        places.setdefault(spoken(error, values), []).append(error)
    return places
