"""Where a run's checkpoints lie, and the moves between there, quarantine and trash, durable one by one."""

from __future__ import annotations

import contextlib
import re
from itertools import chain, count
from typing import TYPE_CHECKING, final
from uuid import uuid4

from domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adapters.shared.file_operations import FileOperations

_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,17})")


def folder_name(step: int) -> str:
    """Return the name of the folder that holds ``step``."""
    return f"checkpoint-{step}"


def is_there(path: Path) -> bool:
    """Return whether something, be it a dangling link, has that name; a disk that cannot tell raises ``OSError``."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


@final
class StoreFolder:
    """The folders of ``root``, which need not exist yet; all methods raise ``OSError``, and ``StateError`` for a link.

    A move is durable once both folders that it changes are synced: on some file systems the old name could otherwise
    come back after a power loss beside the new one, and sweeping it would empty both.
    """

    def __init__(self, root: Path, files: FileOperations) -> None:
        self.root = root
        self._files = files
        self._checkpoints = root / "checkpoints"
        self._quarantine = root / "quarantine"
        self._drafts = root / ".tmp"
        self._trash = root / ".trash"

    def prepare(self) -> None:
        """Make what is missing."""
        self._make(self._checkpoints, self._quarantine, self._drafts, self._trash)

    def checkpoint(self, step: int) -> Path:
        """Return where ``step`` is kept."""
        return self._checkpoints / folder_name(step)

    def new_draft(self) -> Path:
        """Return a name for a save under way."""
        return self._drafts / uuid4().hex

    def checkpoints(self) -> Sequence[Path]:
        """Return whatever is named as a checkpoint, by step."""
        _refuse_link(self._checkpoints)
        try:
            names = [path.name for path in self._checkpoints.iterdir()]
        except FileNotFoundError:
            return []
        steps = sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)
        return [self.checkpoint(step) for step in steps]

    def publish(self, draft: Path, target: Path) -> None:
        """Move a complete draft to its place, durably, or leave no trace of it there."""
        self._files.rename(draft, target)
        try:
            self._files.sync_folder(self._checkpoints)
            self._files.sync_folder(self._drafts)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.rename(target, draft)
            raise

    def discard(self, draft: Path) -> None:
        """Delete a draft, if it is there; one that cannot be deleted is left to ``sweep``."""
        with contextlib.suppress(OSError):
            if is_there(draft):
                self._files.remove_tree(draft)

    def set_aside(self, folder: Path, flaw: str) -> Path:
        """Move a checkpoint into quarantine, named after what is wrong with it, and return where it is now."""
        self._make(self._quarantine)
        target = self._free_name(f"{folder.name}.{flaw}")
        self._files.rename(folder, target)
        self._files.sync_folder(self._quarantine)
        self._files.sync_folder(self._checkpoints)
        return target

    def retire(self, folders: Sequence[Path]) -> None:
        """Delete checkpoints, each gone from its place before its first file is."""
        for folder in folders:
            self._files.rename(folder, self._trash / f"{folder.name}.{uuid4().hex}")
        self.sweep()

    def sweep(self) -> None:
        """Delete what failures and crashes have left, once its move out of ``checkpoints`` is durable."""
        litter = sorted([*self._trash.iterdir(), *self._drafts.iterdir()])
        if litter:
            self._files.sync_folder(self._trash)
            self._files.sync_folder(self._checkpoints)
        for path in litter:
            self._files.remove_tree(path)

    def _free_name(self, name: str) -> Path:
        numbered = (self._quarantine / f"{name}.{number}" for number in count(2))
        return next(path for path in chain([self._quarantine / name], numbered) if not is_there(path))

    def _make(self, *folders: Path) -> None:
        self._make_root(self.root)
        for folder in folders:
            _refuse_link(folder)
            if not folder.is_dir():
                self._files.make_folder(folder)
        self._files.sync_folder(self.root)

    def _make_root(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_root(folder.parent)
        self._files.make_folder(folder)
        try:
            self._files.sync_folder(folder.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.remove_folder(folder)
            raise


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        msg = f"{folder} is a link, which could lead anywhere: make the run folder itself a link instead"
        raise StateError(msg)
