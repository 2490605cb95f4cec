"""Erases checkpoints: destroys their wrapped keys, then deletes the rest."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import destroy_file
from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.adapters.shared.files.sealed_json import parse_json
from holdfast.adapters.state_store.manifest import MANIFEST
from holdfast.adapters.state_store.store_folder import StoreFolder, is_there

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations

_TOMBSTONE = "ERASED.json"
_STEP = re.compile(r"checkpoint-([0-9]{1,18})")
_KEY = b'"wrapped_key":'


@dataclass(frozen=True, slots=True)
class Erasable:
    """The folder of a checkpoint of ``step``, possibly damaged; ``is_encrypted`` if its manifest holds a key."""

    folder: Path
    step: int
    is_encrypted: bool


@final
class Eraser:
    """Erases checkpoints of the store under ``root``, which must have no other writer; raises ``OSError``.

        erased/checkpoint-N/ERASED.json   the record of an erased checkpoint

    A checkpoint is first moved there, so no process reads an incomplete checkpoint; the next call finds and erases a
    checkpoint that a crash left half erased.
    """

    def __init__(self, root: Path, files: FileOperations) -> None:
        self._folder = StoreFolder(root, files)
        self._files = files

    def found(self) -> Sequence[Erasable]:
        """Return the checkpoints that can be erased, including quarantined, superseded and half-erased ones."""
        return [
            Erasable(folder, int(match[1]), _holds_key(folder))
            for folder in self._folder.all_folders()
            if (match := _STEP.match(folder.name)) and not _is_erased(folder)
        ]

    def erase(self, found: Erasable) -> None:
        """Make ``found`` permanently unreadable, even if it is pinned."""
        grave = self._folder.move_to_erased(found.folder)
        if is_there(grave / MANIFEST):
            destroy_file(self._files, grave / MANIFEST)
        if not is_there(grave / _TOMBSTONE):
            told = {"erased_at": datetime.now(UTC).isoformat(timespec="seconds"), "was_encrypted": found.is_encrypted}
            self._files.write_file(grave / _TOMBSTONE, json.dumps(told).encode())
            self._files.sync_file(grave / _TOMBSTONE)
            self._files.sync_folder(grave)
        for path in sorted(grave.iterdir()):
            if path.name != _TOMBSTONE:
                self._files.remove_tree(path)
        self._files.sync_folder(grave)
        if found.step in self._folder.pinned():
            self._folder.unpin(found.step)

    def clear(self) -> None:
        """Erase the leftovers of interrupted saves and deletions."""
        for folder in self._folder.leftovers():
            for manifest in sorted(folder.rglob(MANIFEST)):
                destroy_file(self._files, manifest)
        self._folder.prepare()
        self._folder.sweep()


def time_of_erasure(folder: Path) -> str | None:
    """Return the time at which ``folder`` was erased in ISO 8601, empty if unreadable, None if it was not erased."""
    if not _is_erased(folder):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(parse_json(read_regular(folder / _TOMBSTONE))["erased_at"])
    return ""


def erased_in(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the time of erasure of each erased checkpoint under ``root``; raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((root / "erased").iterdir()):
            if (time := time_of_erasure(folder)) is not None:
                yield folder.name, time


def _is_erased(folder: Path) -> bool:
    return is_there(folder / _TOMBSTONE) and [path.name for path in folder.iterdir()] == [_TOMBSTONE]


def _holds_key(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return _KEY in read_regular(folder / MANIFEST)
    return False
