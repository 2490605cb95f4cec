"""Snapshots for tests, with parts that write, fail or wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot, StatePart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from threading import Event


@final
@dataclass(frozen=True, slots=True)
class BytesPart(StatePart):
    """A part whose bytes are given."""

    name: str
    data: bytes | bytearray

    def chunks(self) -> Iterator[bytes | bytearray]:
        """Yield the bytes."""
        yield self.data


@final
@dataclass(frozen=True, slots=True)
class FailingPart(StatePart):
    """A part that raises ``error`` after half of its file."""

    error: BaseException
    name: str = "half"

    def chunks(self) -> Iterator[bytes]:
        """Yield half of the file, then raise ``error``."""
        yield b"half of what was to be written"
        raise self.error


@final
@dataclass(frozen=True, slots=True)
class WaitingPart(StatePart):
    """A part that signals that it is being written and then waits for permission to finish."""

    begun: Event
    may_finish: Event
    name: str = "waited"

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes once this is allowed."""
        self.begun.set()
        assert self.may_finish.wait(timeout=30)
        yield b"done"


def snapshot_of(step: int, files: Mapping[str, bytes], *, reason: str = "periodic") -> Snapshot:
    """Return a snapshot after ``step`` steps that consists of ``files``."""
    progress = Progress(
        step,
        tokens=1000 * step,
        cursor=Cursor(4 * step, (LanePosition(epoch=1, unit=2, position=3, taken=step), LanePosition())),
    )
    return Snapshot(progress, reason, [BytesPart(name, data) for name, data in files.items()])
