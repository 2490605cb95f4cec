"""Commands to the loop, which executes them between steps; an error in a command ends the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.resources.balance_policy import Knob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class SaveReason(StrEnum):
    """The reason for writing a checkpoint."""

    PERIODIC = "periodic"
    FINAL = "final"
    PREEMPT = "preempt"
    EXCEPTION = "exception"


@dataclass(frozen=True, slots=True)
class Command:
    """A command to the loop; ``is_stale_after_rollback`` is true if it concerns steps that a roll-back undoes."""

    is_stale_after_rollback: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SplitBatch(Command):
    """Use micro-batches of at most ``rows`` rows from now on, fewer or more than before."""

    rows: int


@dataclass(frozen=True, slots=True)
class AdjustResources(Command):
    """Use more or less of the machine from now on: ``knob`` goes from ``before`` to ``after``, for ``reason``."""

    knob: Knob
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class SaveCheckpoint(Command):
    """Capture the last complete step, unless it is durable.

    A periodic save is then written in the background.
    """

    is_stale_after_rollback: ClassVar[bool] = True

    reason: SaveReason = SaveReason.PERIODIC


@dataclass(frozen=True, slots=True)
class Evaluate(Command):
    """Evaluate the model on the held-out documents and the sets, and continue the prompts.

    A pending stop ends the evaluation early.
    """

    is_stale_after_rollback: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RollBack(Command):
    """Roll back to the newest checkpoint of ``step`` or before, for ``reason``; later checkpoints are superseded.

    If ``skip`` is None, the same batches follow again, as after a restart. If it is a number, training continues after
    the batches already consumed and skips that many more. This roll-back is counted, and the run ends with an error
    once ``limit`` roll-backs have been made. If no checkpoint is that old, the run ends with an error, unless the
    roll-back is ``optional``. If ``rather`` is given, a checkpoint of that step or before is preferred.
    """

    is_stale_after_rollback: ClassVar[bool] = True

    step: int
    reason: str
    skip: int | None = None
    limit: int | None = None
    optional: bool = False
    rather: int | None = None


@dataclass(frozen=True, slots=True)
class StopRun(Command):
    """End the run at this step boundary; ``signal`` is the number of the signal that caused it, if any.

    ``is_early`` is true if early stopping is the cause.
    """

    reason: str
    signal: int | None = None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class StopEarly(Command):
    """End the run for ``reason``, unless a roll-back has undone ``step``, the last evaluation without improvement."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class AcknowledgeSave(Command):
    """Report the outcome of save ``number``, of ``step``: its location, or the ``problem`` that prevented it."""

    number: int
    step: int
    location: str
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class AcknowledgeArchive(Command):
    """Report the outcome of copying ``step`` to the archive: its location, or the ``problem`` that prevented it.

    ``deleted`` are the steps whose copies retention has deleted from the archive after that.
    """

    step: int
    location: str
    seconds: float
    problem: str | None = None
    deleted: Sequence[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AcknowledgeMove(Command):
    """Report that the copy of ``step`` was moved from the tier ``source`` to ``target``, or fetched from there."""

    step: int
    source: Tier
    target: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class DropCopy(Command):
    """Free the copy of the last captured state in host memory, if it is durable and memory is nearly full."""


@dataclass(frozen=True, slots=True)
class ReportDamage(Command):
    """Report that an older checkpoint was found damaged and moved to quarantine."""

    name: str
    reason: str
    location: str


@dataclass(frozen=True, slots=True)
class ReportStall(Command):
    """Report that training made no progress for ``seconds``, with the reason as far as it is known."""

    seconds: float
    reason: str


_ALL = (
    SplitBatch,
    AdjustResources,
    SaveCheckpoint,
    Evaluate,
    RollBack,
    StopRun,
    StopEarly,
    AcknowledgeSave,
    AcknowledgeArchive,
    AcknowledgeMove,
    DropCopy,
    ReportDamage,
    ReportStall,
)
_KINDS = {kind.__name__: kind for kind in _ALL}


def to_json(command: Command) -> dict[str, Any]:
    """Return ``command`` as JSON, for another rank."""
    return {"kind": type(command).__name__, **asdict(command)}


def from_json(record: Mapping[str, Any]) -> Command:
    """Return the command that ``to_json`` described."""
    fields = dict(record)
    kind = _KINDS[fields.pop("kind")]
    if kind is SaveCheckpoint:
        fields["reason"] = SaveReason(fields["reason"])
    elif kind is AcknowledgeMove:
        fields |= {"source": Tier(fields["source"]), "target": Tier(fields["target"])}
    elif kind is AdjustResources:
        fields["knob"] = Knob(fields["knob"])
    return kind(**fields)
