"""The port for checkpoints: the store that holds the state of a run."""

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
    from holdfast.domain.training.step_outcome import Progress


class StatePart(ABC):
    """A captured piece of state: one file of a checkpoint, as a stream of bytes.

    ``name`` is the file's path in the checkpoint, relative and in POSIX form, unique among the parts of a snapshot.
    """

    name: str

    @abstractmethod
    def chunks(self) -> Iterator[bytes | bytearray | memoryview]:
        """Yield the file's bytes in order, the same each time and in any thread.

        Each chunk is valid until the next one.
        """


class JoinedPart(ABC):
    """One file of a checkpoint that the first rank makes from files that the ranks have written.

    ``name`` is as in ``StatePart``; ``consumes`` are the ranks' files that are removed from the checkpoint once all
    joined parts are made.
    """

    name: str
    consumes: Sequence[str]

    @abstractmethod
    def chunks(self, read: Callable[[str, int, int], bytes]) -> Iterator[bytes | bytearray | memoryview]:
        """Yield the file's bytes in order; ``read(name, offset, size)`` returns bytes of a rank's file.

        Raises ``StateError`` if the ranks' files are incomplete or inconsistent.
        """


@dataclass(frozen=True, slots=True)
class StateShare:
    """The contribution of one of ``num_ranks`` processes to a checkpoint that all of them write.

    ``save_id`` is the same on all ranks and unique to each save. Ranks wait ``patience`` seconds for each other;
    ``is_over`` returns whether the save has been abandoned.
    """

    save_id: str
    rank: int
    num_ranks: int
    patience: float
    is_over: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a run needs to continue from ``progress``.

    With a ``share`` the parts are those of one rank; the first rank's include ``JoinedPart`` objects.
    ``evaluation_loss`` is the loss on the held-out documents at this step, in nats per token, None if not measured.
    ``contract`` says how exactly the run so far equals an uninterrupted run. ``conditions`` are facts besides the
    settings (ranks, device, threads), by name, that the bits of a resumed run depend on. Parts may alias live training
    state if the caller blocks until ``save`` returns: a store must not keep a part after that. ``saved_at`` is in
    seconds since 1970 by this host's clock.
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

    The other fields are as in ``Snapshot``.
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
class RejectedCheckpoint:
    """A checkpoint that failed verification, the reason, and its place in quarantine."""

    name: str
    reason: str
    location: str


Rejected = RejectedCheckpoint
"""The former name, for adapters from outside that import it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The newest valid checkpoint, None if there is none, and those that were quarantined in the search for it.

    ``folder`` contains the verified files of the snapshot's parts, and possibly files of the store itself. They stay
    readable as long as this object exists, which may own them, until the store is garbage-collected or the retention of
    a later save deletes them.
    """

    info: CheckpointInfo | None
    folder: Path | None
    rejected: Sequence[RejectedCheckpoint] = ()
    owner: object = field(default=None, repr=False, compare=False)


class StateFile(Protocol):
    """A file of a checkpoint, open for reading; both methods raise ``OSError``."""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer at the end of the file; for small reads."""
        ...

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` with bytes from ``offset`` on; return their number. Fastest in ascending order of offsets.

        Leave ``target`` unchanged until the file is closed: it may be verified in place, and if it was changed, the
        whole file is read again.
        """
        ...


class OpenFile(Protocol):
    """Opens files of the checkpoint folder that it was passed with."""

    def __call__(self, path: Path, /) -> AbstractContextManager[StateFile]:
        """Return the open file as a context manager that closes it; it belongs to one thread."""
        ...


@contextmanager
def open_plainly(path: Path) -> Iterator[StateFile]:
    """Open a file that has been verified already."""
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
    """Stores snapshots atomically.

    - ``save`` returns once the snapshot is durable: it survives ``kill -9``, and also power loss if the medium does.
      After a crash before that, the store has the same content as before the call. Later changes of the argument have
      no effect.
    - A failed ``save`` raises ``StateError``, leaves older checkpoints unchanged, and adds no checkpoint. Exceptions of
      a part propagate unchanged, except ``OSError``, which becomes ``StateError``.
    - Saving a step that is already stored raises ``StateError`` and changes nothing.
    - ``load`` returns the files of exactly one saved snapshot: the one of the highest step that verifies. A checkpoint
      that does not verify is quarantined, not deleted, and reported in ``rejected``; the next older one is used. The
      files of different snapshots are never mixed.
    - If the medium cannot be read, or a checkpoint is of a later version, ``load`` and ``list`` raise ``StateError``
      and quarantine nothing.
    - ``restore`` passes to ``into`` the folder that ``load`` would return and a function that opens files in it, and
      returns the same value as ``load``. A store may verify bytes while they are read, so that a large state is read
      only once and exactly the verified bytes are used; ``into`` must therefore read through that function. If
      verification fails, ``into`` is called again, for the same checkpoint or an older one; if no
      checkpoint is left, ``info`` is None although ``into`` was called. If the checkpoint verifies, exceptions of
      ``into`` propagate.
    - ``load`` and ``restore`` with ``at_most`` ignore later steps.
    - ``supersede`` removes the checkpoints of later steps from ``load`` and ``list``, the latest first; a disk
      moves them to another folder. Their steps can be saved again; copies elsewhere are deleted when ``flush`` returns.
    - ``list`` returns the complete checkpoints, oldest first, without verifying their bytes.
    - Retention deletes a checkpoint only if a newer one is durable. It never deletes the newest checkpoint, the
      checkpoint just saved, one that is being copied elsewhere, or one that the last ``spare`` protects. A deletion
      that fails is retried after the next save; the current save succeeds nevertheless.
    - ``flush`` waits until all saves are durable; it is rank-local, idempotent, and callable from any thread.
    - If ``takes_shares``, a snapshot with a ``share`` belongs to one rank: the first rank calls ``save``, the others
      call ``contribute``, in any order. Either all shares are stored or none. If a rank fails, or does not
      arrive within the others' ``patience``, ``save`` raises ``StateError`` that names the rank. ``contribute`` returns
      once its parts are durable, and raises ``StateError`` if they cannot be stored or if the save was abandoned.
      Neither method hangs.
    - If ``keeps_shares``, ``leave_share`` makes one rank's share durable without the other ranks. It changes no
      checkpoint. ``complete_shares``, called by the first rank of a later start, makes a checkpoint of the shares
      with the same ``save_id`` if all ranks have left theirs, at the same step, and if no checkpoint is as new.
      It deletes the shares otherwise. After a crash in the middle it can be called again.
    - ``scrub`` verifies an older checkpoint, a different one each time, concurrently with all other calls, and
      quarantines it if it is damaged.
    - Not promised: two writers at once.
    """

    @property
    @abstractmethod
    def takes_shares(self) -> bool:
        """Return whether several ranks can write one checkpoint together, each rank its own share."""

    @property
    @abstractmethod
    def keeps_shares(self) -> bool:
        """Return whether a rank can leave its share alone, for a later start to complete."""

    @abstractmethod
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        """Make ``snapshot`` durable. Raises ``StateError`` if that fails or if the step is already stored."""

    @abstractmethod
    def contribute(self, snapshot: Snapshot) -> None:
        """Make the parts of ``snapshot``, which has a share, durable for the first rank's ``save``.

        Raises ``StateError`` if they cannot be stored or if the save was abandoned.
        """

    @abstractmethod
    def leave_share(self, snapshot: Snapshot) -> None:
        """Make the parts of ``snapshot``, which has a share, durable by themselves; raises ``StateError`` if not."""

    @abstractmethod
    def complete_shares(self, num_ranks: int, joined: Callable[[], Sequence[JoinedPart]]) -> CheckpointInfo | None:
        """Make a checkpoint of the shares that ``num_ranks`` ranks left; return it, None if no set is whole and newer.

        ``joined`` returns the files that the first rank makes from those of the ranks. Raises ``StateError`` as
        ``load`` does.
        """

    @abstractmethod
    def load(self, *, at_most: int | None = None) -> Loaded:
        """Return the newest checkpoint that verifies, at step ``at_most`` or earlier if it is given.

        Raises ``StateError`` if the medium cannot be read or a checkpoint is of a later version.
        """

    @abstractmethod
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        """Call ``into`` with the newest checkpoint that verifies; return the checkpoint as ``load`` does.

        Raises ``StateError`` as ``load`` does; exceptions of ``into`` propagate if the checkpoint verifies.
        """

    @abstractmethod
    def supersede(self, step: int) -> None:
        """Remove the checkpoints of steps after ``step`` from ``load`` and ``list``."""

    @abstractmethod
    def list(self) -> Sequence[CheckpointInfo]:
        """Return the complete checkpoints, oldest first. Raises ``StateError`` as ``load`` does."""

    @abstractmethod
    def tidy(self) -> None:
        """Delete files that failed saves and failed deletions of earlier starts left; never called during a save."""

    @abstractmethod
    def spare(self, floor: RollBackFloor) -> None:
        """Exempt the checkpoints that ``floor`` needs from retention; a store that deletes nothing ignores this."""

    @abstractmethod
    def scrub(self) -> Sequence[RejectedCheckpoint]:
        """Verify an older checkpoint; return it if it was quarantined. Rank-local, callable from any thread."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until all saves are durable."""
