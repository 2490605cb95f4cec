"""Orders to the loop: each has one executor, the loop, which obeys between steps; their errors propagate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class SaveReason(StrEnum):
    """Why a checkpoint was written."""

    PERIODIC = "periodic"
    FINAL = "final"
    PREEMPT = "preempt"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class Command:
    """An order to the loop."""


@dataclass(frozen=True, slots=True)
class SplitBatch(Command):
    """Use micro-batches of at most ``rows`` rows from now on."""

    rows: int


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(Command):
    """Make the last complete step durable."""

    reason: SaveReason = SaveReason.PERIODIC


@dataclass(frozen=True, slots=True)
class Evaluate(Command):
    """Measure the loss on the held-out documents."""


@dataclass(frozen=True, slots=True)
class StopRun(Command):
    """End the run at this step boundary; ``signal`` is the number of the signal that asked for it, if one did."""

    reason: str
    signal: int | None = None


_KINDS = {kind.__name__: kind for kind in (SplitBatch, SaveCheckpoint, Evaluate, StopRun)}


def to_json(command: Command) -> dict[str, Any]:
    """Return ``command`` as JSON, to tell it to another rank."""
    return {"kind": type(command).__name__, **asdict(command)}


def from_json(record: Mapping[str, Any]) -> Command:
    """Return the command that ``to_json`` described."""
    fields = dict(record)
    kind = _KINDS[fields.pop("kind")]
    if kind is SaveCheckpoint:
        fields["reason"] = SaveReason(fields["reason"])
    return kind(**fields)
