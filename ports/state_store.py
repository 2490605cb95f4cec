"""Where the state of a run is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from domain.progress import Progress


class StatePart(ABC):
    """A captured piece of state that can write itself, as one or more files, into a folder.

    The same part writes the same bytes each time; two parts of a snapshot never write the same file name.
    """

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the files into ``folder``, which exists."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a run needs to go on from ``progress``, captured by value.

    ``evaluation_loss`` is that of the held-out documents at this very step, in nats a token, None if nobody measured.
    """

    progress: Progress
    reason: str
    parts: Sequence[StatePart]
    evaluation_loss: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A stored checkpoint: ``location`` is a path or URL for people and tools, ``num_bytes`` the size of its files.

    ``evaluation_loss`` is that of the snapshot.
    """

    progress: Progress
    reason: str
    location: str
    num_bytes: int
    evaluation_loss: float | None = None


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
    until a later save's retention deletes them, or the store is collected.
    """

    info: CheckpointInfo | None
    folder: Path | None
    rejected: Sequence[Rejected] = ()


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
    - ``list`` names the complete checkpoints, oldest first, without verifying their bytes.
    - Retention deletes only what is older than a durable successor, never the newest, nor what was just saved. If it
      cannot delete, the save has succeeded all the same; the next one tries again.
    - ``flush`` waits until all saves are durable; it is rank-local, idempotent, and callable from any thread.
    - Not promised: two writers at once.
    """

    @abstractmethod
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        """Make ``snapshot`` durable."""

    @abstractmethod
    def load(self) -> Loaded:
        """Return the newest checkpoint that verifies."""

    @abstractmethod
    def list(self) -> Sequence[CheckpointInfo]:
        """Return the complete checkpoints, oldest first."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until nothing is in flight."""
