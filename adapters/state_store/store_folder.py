"""The folders of a run's checkpoints, and durable moves between checkpoints, quarantine and trash."""

from __future__ import annotations

import contextlib
import logging
import re
from itertools import chain, count
from typing import TYPE_CHECKING, final
from uuid import uuid4

from holdfast.adapters.shared.files.committed_folder import make_folders, move
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.state_store.manifest import COMMIT
from holdfast.domain.checkpoints.retention import Role
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.fault_tolerance.remedies import FRESH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.ports.state_store import StateShare

    Record = Callable[[str, Mapping[str, object]], object]

_CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,17})")


def folder_name(step: int) -> str:
    """Return the name of the folder that holds ``step``."""
    return f"checkpoint-{step}"


def committed_steps(root: Path) -> Sequence[int]:
    """Return the steps of the committed checkpoints under ``root`` in ascending order; nothing is verified."""
    names = [commit.parent.name for commit in root.glob(f"{_CHECKPOINTS}/checkpoint-*/{COMMIT}")]
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def is_there(path: Path) -> bool:
    """Return whether ``path`` exists, even as a dangling link; raises ``OSError`` if the disk cannot be read."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):  # something else may stand where its folder is looked for
        return False
    return True


@contextlib.contextmanager
def reading_under(root: Path) -> Iterator[None]:
    """Raise ``StateError`` about the checkpoints under ``root`` in place of an ``OSError``."""
    try:
        yield
    except OSError as error:
        msg = f"the checkpoints under {root} could not be read, {explain(error)}"
        raise StateError(msg) from error


@final
class StoreFolder:
    """The folders of ``root``, which need not exist yet; methods raise ``OSError``, and ``StateError`` for a link."""

    def __init__(self, root: Path, files: FileOperations, guard: AccessGuard | None = None) -> None:
        self.root = root
        self._guard = guard or AccessGuard()
        self._files = files
        self._checkpoints = root / _CHECKPOINTS
        self._quarantine = root / "quarantine"
        self._staging = root / ".tmp"
        self._trash = root / ".trash"
        self._pins = root / "pins"
        self._erased = root / "erased"
        self._superseded = root / "superseded"

    def prepare(self) -> None:
        """Create the missing folders."""
        self._make(self._checkpoints, self._quarantine, self._staging, self._trash)

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of ``step``."""
        return self._checkpoints / folder_name(step)

    def pinned(self) -> Collection[int]:
        """Return the steps of the pinned checkpoints."""
        _check_no_link(self._pins)
        try:
            names = [path.name for path in self._pins.iterdir()]
        except FileNotFoundError:
            return ()
        return {int(match[1]) for match in map(_NAME.fullmatch, names) if match}

    def pin(self, step: int) -> None:
        """Exempt the checkpoint of ``step`` from deletion until ``unpin``; raises ``StateError`` if there is none."""
        self._check_stored(step)
        self._make(self._pins)
        if not is_there(self._pins / folder_name(step)):
            self._files.write_file(self._pins / folder_name(step), b"")
        self._files.sync_folder(self._pins)
        self._check_stored(step)  # a run that trains may have deleted it meanwhile

    def unpin(self, step: int) -> None:
        """Leave the checkpoint of ``step`` to retention again; raises ``StateError`` if it was not pinned."""
        if step not in self.pinned():
            msg = f"step {step} of {self.root} is not pinned: each pinned step has a file in {self._pins}"
            raise StateError(msg)
        self._files.remove_file(self._pins / folder_name(step))
        self._files.sync_folder(self._pins)

    def staging_folder(self, share: StateShare | None = None) -> Path:
        """Return the draft folder of a new save, or of the save of ``share``; its name is the save's id."""
        return self._staging / (uuid4().hex if share is None else share.save_id)

    def checkpoints(self, at_most: int | None = None) -> Sequence[Path]:
        """Return the paths named as checkpoints, sorted by step, up to the step ``at_most``."""
        _check_no_link(self._checkpoints)
        try:
            names = [path.name for path in self._checkpoints.iterdir()]
        except FileNotFoundError:
            return []
        steps = sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)
        return [self.checkpoint(step) for step in steps if at_most is None or step <= at_most]

    def publish(self, staging: Path, target: Path) -> None:
        """Move a complete draft to its place, durably; after an error it is moved back."""
        move(self._files, staging, target)

    def discard(self, staging: Path) -> None:
        """Delete a draft, if it is there; one that cannot be deleted is left to ``sweep``."""
        with contextlib.suppress(OSError):
            if is_there(staging):
                self._files.remove_tree(staging)

    def set_aside(self, folder: Path, flaw: str) -> Path:
        """Move a checkpoint into quarantine, named after its defect, and return its new path."""
        return self._move(folder, self._quarantine / f"{folder.name}.{flaw}")

    def supersede(self, step: int) -> None:
        """Move the checkpoints of steps after ``step`` to the folder of superseded ones, the latest first."""
        for folder in reversed(self.checkpoints()[len(self.checkpoints(step)) :]):
            self._move(folder, self._superseded / folder.name)

    def move_to_erased(self, folder: Path) -> Path:
        """Move a checkpoint to the folder of erased ones, unless it is there already, and return its new path."""
        if folder.parent == self._erased:
            return folder
        return self._move(folder, self._erased / folder.name)

    def check_not_erased(self) -> None:
        """Raise ``StateError`` if checkpoints were erased here: a run must not start from step 0 without notice."""
        if _children(self._erased):
            msg = f"checkpoints of {self.root} were erased and none is left: start a new run with {FRESH}"
            raise StateError(msg)

    def all_folders(self) -> Sequence[Path]:
        """Return all paths in the folders of stored, quarantined, superseded and erased checkpoints."""
        places = (self._checkpoints, self._quarantine, self._superseded, self._erased)
        return [path for place in places for path in _children(place)]

    def leftovers(self) -> Sequence[Path]:
        """Return the remains of failed saves and of crashes."""
        return [*_children(self._trash), *_children(self._staging)]

    def delete(self, folders: Sequence[Path]) -> None:
        """Delete checkpoints, if permitted: each is recorded first, and moved away before its files are deleted."""
        for folder in folders if self._guard.allows(Role.DELETE) else ():
            self._guard.record_deletion(folder.name, "retention")
            self._files.rename(folder, self._trash / f"{folder.name}.{uuid4().hex}")
        self.sweep()

    def delete_durably(self, folder: Path) -> None:
        """Delete only one archived checkpoint, durably; another thread may save meanwhile."""
        self._guard.record_deletion(folder.name, "the disk is nearly full")
        target = self._trash / f"{folder.name}.{uuid4().hex}"
        move(self._files, folder, target)
        self._files.remove_tree(target)

    def sweep(self) -> None:
        """Delete the remains of failed saves and of crashes, if permitted, once their moves are durable."""
        if not self._guard.allows(Role.DELETE):
            return
        leftovers = self.leftovers()
        if leftovers:
            self._files.sync_folder(self._trash)
            self._files.sync_folder(self._checkpoints)
        for path in leftovers:
            self._files.remove_tree(path)

    def _check_stored(self, step: int) -> None:
        if not is_there(self.checkpoint(step)):
            msg = f"{self.checkpoint(step)} does not exist: name a step that inspect shows"
            raise StateError(msg)

    def _move(self, folder: Path, place: Path) -> Path:
        self._make(place.parent)
        target = _free_name(place)
        move(self._files, folder, target)
        return target

    def _make(self, *folders: Path) -> None:
        make_folders(self._files, self.root)
        for folder in folders:
            _check_no_link(folder)
            if not folder.is_dir():
                self._files.make_folder(folder)
        self._files.sync_folder(self.root)


def _free_name(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(name for name in chain([path], numbered) if not is_there(name))


def _children(folder: Path) -> Sequence[Path]:
    _check_no_link(folder)
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _check_no_link(folder: Path) -> None:
    if folder.is_symlink():
        msg = f"{folder} is a link, which could lead anywhere: make the run folder itself a link instead"
        raise StateError(msg)


_log = logging.getLogger(__name__)


def record_nothing(_event: str, _details: Mapping[str, object]) -> None:
    """Record nothing, for a guard without an audit."""


@final
class AccessGuard:
    """Allows the operations of ``roles``, and passes each refusal and each imminent deletion to ``record``."""

    def __init__(self, roles: Collection[Role] = tuple(Role), record: Record = record_nothing) -> None:
        self._roles = roles
        self._record = record

    def allows(self, role: Role) -> bool:
        """Return whether ``role`` is among the roles."""
        return role in self._roles

    def require(self, role: Role, what: str) -> None:
        """Raise ``ConfigurationError`` unless ``role`` is among the roles.

        ``what``, the operation that needs the role, begins the message.
        """
        if self.allows(role):
            return
        try:
            self._record("AccessRefused", {"role": str(role), "to": what})
        except StateError as error:
            _log.warning("a refusal could not be recorded in the audit: %s", error)
        msg = (
            f"{what} needs the role {role}, and state_store.roles has {', '.join(self._roles) or 'none'}: run it "
            "as a process that has it, or add that role"
        )
        raise ConfigurationError(msg)

    def record_deletion(self, name: str, reason: str) -> None:
        """Record that the checkpoint ``name`` is about to be deleted; exceptions of ``record`` prevent the deletion."""
        self._record("CheckpointDeleted", {"name": name, "reason": reason, "role": str(Role.DELETE)})
