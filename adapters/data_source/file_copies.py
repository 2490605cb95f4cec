"""Finds files of records that seem to be copies of others: their records would be read several times."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.data_source.folder_choice import shown_names
from holdfast.domain.counting import counted
from holdfast.ports.data_source import Remark

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from holdfast.adapters.data_source.file_reader import FileReader, SourceFile

_COMPARED_BYTES = 1 << 12
_MOST_FILES = 2_000  # that are opened to be compared


def remark_copies(files: Sequence[SourceFile], reader: FileReader) -> Iterator[Remark]:
    """Yield which of ``files`` are links to others, seem to be copies of others, or hold others in packed form.

    Only files on this machine are compared. Copies have equal sizes and equal first and last 4 KiB, packed files the
    names of others before the suffix and equal first 4 KiB when they are unpacked; at most 2,000 files are opened for
    either. Of plain text only links are looked for, as short texts repeat.
    """
    local = [file for file in files if file.stored.is_local and file.stored.unit.size]
    links = _repeated(local, _place)
    yield from _told(links, "is another one under a second name, so", "are others under second names, so")
    records = [file for file in local if file.format != "txt" and file not in links]
    sizes = Counter(file.stored.unit.size for file in records)
    equal = [file for file in records if sizes[file.stored.unit.size] > 1]
    copies = _repeated(equal[:_MOST_FILES], lambda file: (file.stored.unit.size, *_ends(file, reader)))
    yield from _told(
        copies,
        "seems to be a copy of another, with its size, beginning and end; if so,",
        "seem to be copies of others, with their sizes, beginnings and ends; if so,",
    )
    names = Counter(_unpacked_name(file) for file in records)
    pairs = [file for file in records if names[_unpacked_name(file)] > 1]
    packed = _repeated(pairs[:_MOST_FILES], lambda file: (_unpacked_name(file), reader.begin(file)[:_COMPARED_BYTES]))
    yield from _told(
        packed,
        "seems to be another one in packed form, as it begins like it; if so,",
        "seem to be others in packed form, as they begin like them; if so,",
    )


def _repeated(files: Sequence[SourceFile], key: Callable[[SourceFile], Hashable]) -> Sequence[SourceFile]:
    """Return all of ``files`` whose ``key`` an earlier one has."""
    keys, found = set(), []
    for file in files:
        with suppress(Exception):  # reading the file for training tells what is wrong with it
            this = key(file)
            if this in keys:
                found.append(file)
            keys.add(this)
    return found


def _told(files: Sequence[SourceFile], one: str, several: str) -> Iterator[Remark]:
    if files:
        names = shown_names([file.stored.below.lstrip("/") or file.name for file in files])
        clause = f"{one} its records are" if len(files) == 1 else f"{several} their records are"
        yield Remark(f"{counted(len(files), 'file')} {clause} read several times: {names}")


def _place(file: SourceFile) -> tuple[int, int]:
    status = Path(file.stored.path).stat()
    return status.st_dev, status.st_ino


def _unpacked_name(file: SourceFile) -> str:
    return file.stored.path if file.compression == "none" else file.stored.path.rpartition(".")[0]


def _ends(file: SourceFile, reader: FileReader) -> tuple[bytes, bytes]:
    with reader.access.opened(file.stored, is_random=True) as stored:
        begin = stored.read(_COMPARED_BYTES)
        stored.seek(max(0, file.stored.unit.size - _COMPARED_BYTES))
        return begin, stored.read(_COMPARED_BYTES)
