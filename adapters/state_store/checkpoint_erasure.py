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
    """A folder of a checkpoint of ``step``, be it a damaged one; without a key in it, it may be plain."""

    folder: Path
    step: int
    is_encrypted: bool


@final
class Eraser:
    """Erases what lies in the store under ``root``, where nobody else may write meanwhile; raises ``OSError``.

        erased/checkpoint-N/ERASED.json   what is left of one

    A checkpoint is moved there first. So it is read as it was, or not at all; and what a crash has left there half
    erased is found, and erased by the next call.
    """

    def __init__(self, root: Path, files: FileOperations) -> None:
        self._folder = StoreFolder(root, files)
        self._files = files

    def found(self) -> Sequence[Erasable]:
        """Return what can be erased: checkpoints, those in quarantine, and what an erasure that was cut short left."""
        return [
            Erasable(folder, int(match[1]), _holds_key(folder))
            for folder in self._folder.all_folders()
            if (match := _STEP.match(folder.name)) and not _is_erased(folder)
        ]

    def erase(self, found: Erasable) -> None:
        """Make ``found`` unreadable for good, pinned or not."""
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
        """Erase what saves and deletions that were cut short have left."""
        for folder in self._folder.leftovers():
            for manifest in sorted(folder.rglob(MANIFEST)):
                destroy_file(self._files, manifest)
        self._folder.prepare()
        self._folder.sweep()


def time_of_erasure(folder: Path) -> str | None:
    """Return when the checkpoint in ``folder`` was erased, empty if that cannot be read, None if it was not."""
    if not _is_erased(folder):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(read_regular(folder / _TOMBSTONE))["erased_at"])
    return ""


def erased_in(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the names of the checkpoints under ``root`` that were erased, and when; raises ``OSError``."""
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
