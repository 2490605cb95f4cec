"""Snapshots to save, made of parts that write, fail or wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.training.progress import Progress
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
        """Yield all of them."""
        yield self.data


@final
@dataclass(frozen=True, slots=True)
class FailingPart(StatePart):
    """A part that raises ``error`` after half its file."""

    error: BaseException
    name: str = "half"

    def chunks(self) -> Iterator[bytes]:
        """Yield half a file and raise."""
        yield b"half of what was to be written"
        raise self.error


@final
@dataclass(frozen=True, slots=True)
class WaitingPart(StatePart):
    """A part that says when it is being written and takes until it is allowed to finish."""

    begun: Event
    may_finish: Event
    name: str = "waited"

    def chunks(self) -> Iterator[bytes]:
        """Yield a file once allowed."""
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
