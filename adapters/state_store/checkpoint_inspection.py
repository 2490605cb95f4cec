"""Inspects and verifies the checkpoints of a store on disk without changing anything."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import FileOperations, explain
from holdfast.adapters.state_store.checkpoint_encryption import erased_in, time_of_erasure
from holdfast.adapters.state_store.checkpoint_verification import check_files, read_committed, read_manifest
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.adapters.state_store.manifest import COMMIT, MANIFEST
from holdfast.adapters.state_store.store_folder import StoreFolder, is_there, reading_under
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.manifest import Manifest

ERASED = "erased"
OTHER_SCHEMA = "other-schema"
UNREADABLE = "unreadable"

_CHECKPOINT = re.compile(r"checkpoint-[0-9]{1,18}")
_SET_ASIDE = re.compile(rf"{_CHECKPOINT.pattern}\.(?P<flaw>[a-z-]+)(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a checkpoint: its kind, a clause that describes it, and the file, None for the whole checkpoint."""

    flaw: str
    reason: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The result of inspecting one checkpoint.

    ``manifest`` is None if it is not valid, ``saved`` is None if the time is unknown. ``sound`` are the listed files
    without a problem; files that are neither in ``sound`` nor in ``problems`` were not checked.
    """

    name: str
    saved: datetime | None
    manifest: Manifest | None
    sound: frozenset[str]
    problems: Sequence[Problem]

    @property
    def stops_a_resume(self) -> bool:
        """Return whether the checkpoint cannot be read although it is not damaged: a resume then ends in an error."""
        return any(problem.flaw in {OTHER_SCHEMA, UNREADABLE} for problem in self.problems)


@dataclass(frozen=True, slots=True)
class QuarantinedFolder:
    """An entry of the quarantine; ``flaw`` is None if its name does not state the reason."""

    name: str
    flaw: str | None


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The result of inspecting a store: checkpoints, oldest first, quarantine, pinned steps, erased names and times."""

    checkpoints: Sequence[CheckpointReport]
    quarantine: Sequence[QuarantinedFolder]
    pinned: Collection[int] = ()
    erased: Sequence[tuple[str, str]] = ()

    @property
    def resumable(self) -> CheckpointReport | None:
        """Return the checkpoint that a resume uses, or that ends it with an error; None if it starts from step 0.

        A resume tries the newest first, as ``DiskStateStore.load`` does.
        """
        newest_first = reversed(self.checkpoints)
        return next((found for found in newest_first if not found.problems or found.stops_a_resume), None)


@final
class CheckpointInspector:
    """Inspects stores and checkpoints; ``count`` receives the number of bytes of each read.

    Without ``hashing`` only names and sizes are compared. It follows no link and writes, moves and locks nothing, so a
    run may train at the same time; checkpoints that its retention deletes are left out.
    """

    def __init__(self, *, hashing: bool, count: Callable[[int], object]) -> None:
        self._hashing = hashing
        self._files = _CountingOperations(count)

    def store(self, root: Path) -> StoreReport:
        """Inspect the store under ``root``; raises ``StateError`` if its folders cannot be read."""
        with reading_under(root):
            folder = StoreFolder(root, self._files)
            checkpoints, set_aside = self._checkpoints(folder), _set_aside(root / "quarantine")
            return StoreReport(checkpoints, set_aside, folder.pinned(), list(erased_in(root)))

    def checkpoint(self, folder: Path) -> CheckpointReport:
        """Inspect the checkpoint in ``folder``; raises ``StateError`` if it no longer exists."""
        report = self._checkpoint(folder)
        if report is None:
            msg = f"{folder} was deleted meanwhile: the running training may have applied its retention"
            raise StateError(msg)
        return report

    def _checkpoints(self, store: StoreFolder) -> Sequence[CheckpointReport]:
        while folders := store.checkpoints():
            found = map(self._checkpoint, reversed(folders))  # the oldest may be deleted next
            if reports := [report for report in found if report is not None]:
                return reports[::-1]  # else newer ones have replaced all
        return []

    def _checkpoint(self, folder: Path) -> CheckpointReport | None:
        if not folder.is_symlink() and (time := time_of_erasure(folder)) is not None:
            problem = Problem(ERASED, f"it was erased{time and ' at '}{time}, and nothing of it can be read any more")
            return CheckpointReport(folder.name, None, None, frozenset(), [problem])
        saved, manifest = _time_of_save(folder), None
        sound: set[str] = set()
        problems: list[Problem] = []
        try:
            # outside a store, as a copy or in quarantine, a checkpoint may have any name
            read = read_manifest if folder.parent.name == "checkpoints" else read_committed
            manifest = read(self._files, folder)
            saved = _time_in(manifest) or saved  # the times of files are those of a copy
            for path, corruption in check_files(self._files, folder, manifest, hashing=self._hashing):
                if corruption is None:
                    sound.add(path)
                else:
                    problems.append(_problem(corruption, path))
        except (CorruptCheckpoint, OSError, StateError) as error:
            problems.append(_problem(error))
        if not is_there(folder):
            return None
        return CheckpointReport(folder.name, saved, manifest, frozenset(sound), problems)


def _time_in(manifest: Manifest) -> datetime | None:
    """Return the time of the save, None if it is none of the calendar or is not recorded."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(manifest.snapshot.saved_at, UTC) if manifest.snapshot.saved_at else None
    return None


def is_checkpoint(folder: Path) -> bool:
    """Return whether ``folder`` is a checkpoint, possibly damaged, not a run; raises ``OSError``."""
    if is_there(folder / MANIFEST) or is_there(folder / COMMIT):
        return True
    return _CHECKPOINT.match(folder.name) is not None and not is_there(folder / "checkpoints")


def _problem(error: CorruptCheckpoint | OSError | StateError, path: str | None = None) -> Problem:
    if isinstance(error, CorruptCheckpoint):
        return Problem(error.kind.value, str(error).removeprefix(f"{error.kind}: "), path)
    if isinstance(error, StateError):
        return Problem(OTHER_SCHEMA, str(error))
    return Problem(UNREADABLE, f"it cannot be read, {explain(error)}")


def _time_of_save(folder: Path) -> datetime | None:
    with contextlib.suppress(OSError, OverflowError, ValueError):  # a damaged file system may return any number
        if not folder.is_symlink():
            return datetime.fromtimestamp((folder / COMMIT).lstat().st_mtime, UTC)
    return None


def _set_aside(folder: Path) -> Sequence[QuarantinedFolder]:
    if folder.is_symlink():
        msg = f"{folder} is a link, which could lead anywhere: make the run folder itself a link instead"
        raise StateError(msg)
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
    matches = [_SET_ASIDE.fullmatch(name) for name in names]
    return [
        QuarantinedFolder(name, match["flaw"] if match else None) for name, match in zip(names, matches, strict=True)
    ]


@final
class _CountedFile(FileIO):
    """A file that passes the number of bytes of each read to ``count``."""

    def __init__(self, descriptor: int, count: Callable[[int], object]) -> None:
        super().__init__(descriptor, "rb")
        self._count = count

    @override
    def readall(self) -> bytes:
        data = super().readall()
        self._count(len(data))
        return data

    @override
    def readinto(self, buffer: Any, /) -> int:
        num_bytes = super().readinto(buffer)
        self._count(num_bytes)
        return num_bytes


@final
class _CountingOperations(FileOperations):
    def __init__(self, count: Callable[[int], object]) -> None:
        self._count = count

    @override
    def open_file(self, path: Path) -> FileIO:
        with super().open_file(path) as file:
            return _CountedFile(os.dup(file.fileno()), self._count)
