"""Where the state of a run is kept."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from holdfast.domain.checkpoints.reproducibility import Reproducibility

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from holdfast.domain.checkpoints.retention import RollBackFloor
    from holdfast.domain.training.progress import Progress


class StatePart(ABC):
    """A captured piece of state: one file of a checkpoint, as a stream of bytes.

    ``name`` is the file's path in the checkpoint, relative and in POSIX form, another one for each part of a snapshot.
    """

    name: str

    @abstractmethod
    def chunks(self) -> Iterator[bytes | bytearray | memoryview]:
        """Yield the file's bytes in order, the same each time and in any thread; a chunk is valid until the next."""


class JoinedPart(ABC):
    """One file of a checkpoint that the first rank makes of files that the ranks have written.

    ``name`` is as in ``StatePart``; ``consumes`` are files of the ranks that leave the checkpoint once all joined parts
    are made.
    """

    name: str
    consumes: Sequence[str]

    @abstractmethod
    def chunks(self, read: Callable[[str, int, int], bytes]) -> Iterator[bytes | bytearray | memoryview]:
        """Yield the file's bytes in order; ``read`` returns so many bytes of a rank's file from an offset on.

        Raises ``StateError`` if the ranks' files do not make up a whole.
        """


@dataclass(frozen=True, slots=True)
class StateShare:
    """What one of ``num_ranks`` processes has to do with a save that all of them write.

    ``save_id`` is the same on each, and another one in each save; ranks wait ``patience`` seconds for each other, and
    ``is_over`` tells that nobody waits for it any more.
    """

    save_id: str
    rank: int
    num_ranks: int
    patience: float
    is_over: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a run needs to go on from ``progress``.

    With a ``share`` the parts are those of one rank, and there are ``JoinedPart`` among those of the first.
    ``evaluation_loss`` is that of the held-out documents at this very step, in nats a token, None if nobody measured.
    ``contract`` tells what the run is equal to so far, and ``conditions`` what a resume's bits depend on beside the
    settings (ranks, device, threads), by name. Parts may be of what training changes, if whoever saves waits for that:
    a store keeps none of them behind ``save``. ``saved_at`` is in seconds since 1970, as this host's clock has it.
    """

    progress: Progress
    reason: str
    parts: Sequence[StatePart | JoinedPart]
    evaluation_loss: float | None = None
    contract: Reproducibility = Reproducibility.BITWISE
    conditions: Mapping[str, str] = field(default_factory=dict)
    saved_at: float = field(default_factory=time.time)
    share: StateShare | None = None


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A stored checkpoint: ``location`` is a path or URL for people and tools, ``num_bytes`` the size of its files.

    The rest is as in the snapshot.
    """

    progress: Progress
    reason: str
    location: str
    num_bytes: int
    evaluation_loss: float | None = None
    contract: Reproducibility = Reproducibility.BITWISE
    conditions: Mapping[str, str] = field(default_factory=dict)
    saved_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that failed verification, why, and where it was set aside."""

    name: str
    reason: str
    location: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest valid checkpoint, None if there is none, and those that were set aside on the way to it.

    ``folder`` holds the files of the snapshot's parts, verified, perhaps beside the store's own; they are readable
    as long as this value is there, which may own them, until the store is collected or a later save's retention
    deletes them.
    """

    info: CheckpointInfo | None
    folder: Path | None
    rejected: Sequence[Rejected] = ()
    owner: object = field(default=None, repr=False, compare=False)


class StateFile(Protocol):
    """A file of a checkpoint, open to be read; both methods raise ``OSError``."""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer where the file ends: for what is small."""
        ...

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` with bytes from ``offset`` on; return how many there were. Fastest in ascending order.

        What was filled is best left as it is until the file is closed: it may be verified where it lies, and if it was
        changed, all is read again.
        """
        ...


class OpenFile(Protocol):
    """Opens a file of the folder that came with it."""

    def __call__(self, path: Path, /) -> AbstractContextManager[StateFile]:
        """Return the open file, closed behind the block; it belongs to one thread."""
        ...


@contextmanager
def open_plainly(path: Path) -> Iterator[StateFile]:
    """Open a file that needs no verification any more."""
    with path.open("rb", buffering=0) as file:
        yield _PlainFile(file.fileno())


@dataclass(frozen=True, slots=True)
class _PlainFile:
    descriptor: int

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, offset)

    def fill(self, offset: int, target: memoryview) -> int:
        return os.preadv(self.descriptor, [target], offset)


class StateStore(ABC):
    """Keeps snapshots, all or nothing.

    - ``save`` returns once the snapshot is durable (it survives ``kill -9`` and power loss where the medium can); at
      any earlier crash the store holds what it held before. A later change of the argument does not leak in.
    - A failed ``save`` raises ``StateError``, leaves older checkpoints as they were and no litter that counts. What a
      part raises comes through as it is, but for ``OSError``, which becomes ``StateError``.
    - Saving a step that is already stored raises ``StateError`` and changes nothing.
    - ``load`` returns exactly one saved snapshot's files, of the highest step that verifies. One that does not verify
      is set aside, not deleted, and reported in ``rejected``; the next older one is used. It never returns a mixture.
    - A medium that cannot be read, or a checkpoint of a later version, makes ``load`` and ``list`` raise
      ``StateError`` and sets nothing aside.
    - ``restore`` hands what ``load`` would return to ``into``, its folder and what opens the files in it, and returns
      it. A store may verify what is read while it is read, so that a large state is read once, and what is used is
      what was verified: read through what opens files, not from the folder. If it turns out to be other bytes, ``into``
      is called again, for the same checkpoint or an older one; if none is left, None is returned though ``into`` was
      called. What ``into`` raises of a checkpoint that verifies comes through.
    - ``load`` and ``restore`` with ``at_most`` pass over later steps as if they were not there.
    - ``supersede`` moves the checkpoints of later steps out of the way, the latest first: neither loaded nor listed any
      more, on a disk set aside. Their steps can be saved again, and copies elsewhere are gone once ``flush`` returns.
    - ``list`` names the complete checkpoints, oldest first, without verifying their bytes.
    - Retention deletes only what is older than a durable successor, never the newest, what was just saved, what is
      being copied elsewhere, or what ``spare`` named last. What it cannot delete the next save tries again; this one
      has succeeded all the same.
    - ``flush`` waits until all saves are durable; it is rank-local, idempotent, and callable from any thread.
    - Where ``takes_shares``, a snapshot with a ``share`` is one rank's: the first rank calls ``save``, the others
      ``contribute``, in any order. All are stored or none: if a rank fails, or does not come while the others have
      patience, ``save`` raises ``StateError`` and says which. ``contribute`` returns once its parts are durable, and
      raises ``StateError`` if they cannot be or nobody waits for them. Neither hangs.
    - ``scrub`` verifies an older checkpoint, another each time, beside all else, and sets it aside if it is damaged.
    - Not promised: two writers at once.
    """

    @property
    @abstractmethod
    def takes_shares(self) -> bool:
        """Return whether several ranks can write one checkpoint here, each a share of it."""

    @abstractmethod
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        """Make ``snapshot`` durable."""

    @abstractmethod
    def contribute(self, snapshot: Snapshot) -> None:
        """Make the parts of ``snapshot``, a share, durable for the first rank's ``save``."""

    @abstractmethod
    def load(self, *, at_most: int | None = None) -> Loaded:
        """Return the newest checkpoint that verifies, of step ``at_most`` or an earlier one if that is given."""

    @abstractmethod
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        """Have ``into`` take over the state of the newest checkpoint that verifies; return it as ``load`` does."""

    @abstractmethod
    def supersede(self, step: int) -> None:
        """Move the checkpoints of steps after ``step`` out of the way."""

    @abstractmethod
    def list(self) -> Sequence[CheckpointInfo]:
        """Return the complete checkpoints, oldest first."""

    @abstractmethod
    def tidy(self) -> None:
        """Delete what failed saves and deletions of earlier starts have left; never while a save is under way."""

    @abstractmethod
    def spare(self, floor: RollBackFloor) -> None:
        """Have the retention of later saves leave what ``floor`` needs; a store that keeps all does so anyway."""

    @abstractmethod
    def scrub(self) -> Sequence[Rejected]:
        """Look into an older checkpoint; return it if it was set aside. Rank-local, callable from any thread."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until nothing is in flight."""
