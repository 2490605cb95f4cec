"""The identity of data: their files and the content of each, wherever they are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


FIRST_RULES, LATEST_RULES = 1, 2
"""Versions of the rules by which files are chosen in a folder and read; a run keeps those of its beginning."""


@final
@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the data.

    ``name`` is its path below the place where the data begin, ``size`` its bytes as stored, ``form`` its format.
    ``content`` is a hash of its bytes, None while it is unknown. If ``stamp`` is equal, the file was neither moved
    nor written to; this needs no reading.
    """

    name: str
    size: int
    form: str
    stamp: str
    content: str | None = None


@final
@dataclass(frozen=True, slots=True)
class DataFiles:
    """All files of the data, in the order in which they are read.

    ``reading`` identifies how documents are made of them. ``places`` are the folders where the data begin, by the name
    of the source. ``first_places`` are the folders at the time when the order of the files was chosen; the order
    depends on them. Neither is part of the identity of the data.
    """

    reading: str
    places: Mapping[str, Sequence[str]]
    first_places: Mapping[str, Sequence[str]]
    files: Sequence[DataFile]

    @property
    def shape(self) -> str:
        """Return a hash of everything except the contents: data with different shapes cannot be the same."""
        return _digest([self.reading, *(f"{file.name}\0{file.size}\0{file.form}" for file in self.files)])

    @property
    def num_unknown_bytes(self) -> int:
        """Return the size in bytes of the files whose content is not known."""
        return sum(file.size for file in self.files if file.content is None)

    def to_json(self) -> dict[str, Any]:
        """Return the files as JSON, one line of text each."""
        lines = [
            f"{file.content or '?'} {file.size} {file.stamp} {file.form or '?'} {file.name}" for file in self.files
        ]
        places, first = (_as_lists(places) for places in (self.places, self.first_places))
        return {"reading": self.reading, "places": places, "first_places": first, "files": lines}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the files from the result of ``to_json``; raises ``ValueError`` or ``KeyError`` or similar otherwise.

        A name may contain spaces; the other fields may not.
        """
        files = []
        for line in record["files"]:
            content, size, stamp, form, name = line.split(" ", 4)
            files.append(DataFile(name, int(size), _unless_unknown(form) or "", stamp, _unless_unknown(content)))
        places = dict(record["places"])
        return cls(str(record["reading"]), places, dict(record.get("first_places", places)), files)


def _as_lists(places: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {name: list(of_source) for name, of_source in places.items()}


def _unless_unknown(text: str) -> str | None:
    return None if text == "?" else text


def difference(then: DataFiles, now: DataFiles) -> str | None:
    """Return a clause with the first file in which ``now`` differs from ``then``; None if they are equal.

    A file whose content is not known on either side counts as the same if its size is the same, unless it was written
    to without being moved.
    """
    if then.reading != now.reading:
        return "the settings of its fields, filter or limits have changed"
    now_by_name, before = {file.name: file for file in now.files}, {file.name: file for file in then.files}
    moved = [name for name, places in now.places.items() if list(places) != list(then.places.get(name, ()))]
    for file in then.files:
        was_moved = any(not name or file.name.startswith(f"{name}: ") for name in moved)
        if (clause := _difference(file, now_by_name.get(file.name), was_moved=was_moved)) is not None:
            return clause
    new = [file.name for file in now.files if file.name not in before]
    if new:
        return f"{_shown(new[0])} is new" + (f", and so are {len(new) - 1} more" if len(new) > 1 else "")
    if [file.name for file in then.files] != [file.name for file in now.files]:
        return "its files are in another order"
    return None


def only_new(then: DataFiles, now: DataFiles) -> bool:
    """Return whether ``now`` differs from ``then`` only by added files."""
    before = {file.name for file in then.files}
    kept = [file for file in now.files if file.name in before]
    return len(kept) < len(now.files) and difference(then, replace(now, files=kept)) is None


def _difference(then: DataFile, now: DataFile | None, *, was_moved: bool) -> str | None:
    shown = _shown(then.name)
    if now is None:
        return f"{shown} is missing"
    if then.form != now.form:
        return f"{shown} was read as {then.form} and is read as {now.form}"
    if then.size != now.size:
        return f"the content of {shown} has changed: it had {then.size:,} bytes and has {now.size:,}"
    if then.content is None or now.content is None:
        if then.stamp == now.stamp or was_moved:
            return None
        return f"{shown} was written to before all of it had been read, so its content cannot be compared"
    return None if then.content == now.content else f"the content of {shown} has changed, its size has not"


def _shown(name: str) -> str:
    """Return ``name`` for a sentence: a file that is a whole place of the data has none below it."""
    return f"{name}the file" if not name or name.endswith(": ") else name


def join(parts: Mapping[str, DataFiles]) -> DataFiles:
    """Return the files of several sources as the files of one source, each named ``source: file``."""
    return DataFiles(
        _digest([f"{name}\0{part.reading}" for name, part in parts.items()]),
        {name: places for name, part in parts.items() for places in part.places.values()},
        {name: places for name, part in parts.items() for places in part.first_places.values()},
        [replace(file, name=f"{name}: {file.name}") for name, part in parts.items() for file in part.files],
    )


def part_of(joined: DataFiles, name: str) -> DataFiles:
    """Return the files of the source ``name`` as they were given to ``join``, without ``reading``."""
    start = f"{name}: "
    files = [replace(file, name=file.name[len(start) :]) for file in joined.files if file.name.startswith(start)]
    places, first = ({"": known.get(name, ())} for known in (joined.places, joined.first_places))
    return DataFiles("", places, first, files)


def _digest(lines: Sequence[str]) -> str:
    hasher = blake2b(digest_size=16)
    for line in lines:
        data = line.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()
