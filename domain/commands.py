"""Commands to the loop, which executes them between steps; an error of one ends the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.resources.knobs import Knob

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
    """An order to the loop; ``is_stale_after_rollback`` if it concerns steps that a roll-back takes back."""

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
    """Make the last complete step durable."""

    is_stale_after_rollback: ClassVar[bool] = True

    reason: SaveReason = SaveReason.PERIODIC


@dataclass(frozen=True, slots=True)
class Evaluate(Command):
    """Measure the loss on the held-out documents."""

    is_stale_after_rollback: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RollBack(Command):
    """Go back to the newest checkpoint of ``step`` or an earlier one, for ``reason``; later ones are superseded.

    ``skip`` None takes the same batches again, as a restart would. A number goes on behind the batches that were
    consumed, and so many more; the return is counted then, and a run with ``limit`` returns ends with an error.
    Without such a checkpoint the run ends too, unless the return is ``optional``. One of step ``rather`` or before, if
    that is given and there is one, is taken in place of a later one.
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
    """End the run at this step boundary; ``signal`` is the number of the signal that asked for it, if one did."""

    reason: str
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class AcknowledgeSave(Command):
    """Tell what became of the run's save of that ``number``, of ``step``: where it lies, or why it does not."""

    number: int
    step: int
    location: str
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class AcknowledgeArchive(Command):
    """Tell what became of the copy of ``step`` in the archive: where it lies, or with ``problem`` why it does not."""

    step: int
    location: str
    seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class AcknowledgeMove(Command):
    """Tell that the copy of ``step`` in the tier ``source`` gave way to that in ``target``, or was brought there."""

    step: int
    source: Tier
    target: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class DropCopy(Command):
    """Give up the copy of the last captured state in memory, if it is durable and memory is nearly full."""


@dataclass(frozen=True, slots=True)
class ReportDamage(Command):
    """Tell that an older checkpoint was found damaged and set aside."""

    name: str
    reason: str
    location: str


@dataclass(frozen=True, slots=True)
class ReportStall(Command):
    """Tell that training had shown no sign of life for so many ``seconds``, and why as far as is known."""

    seconds: float
    reason: str


_ALL = (
    SplitBatch,
    AdjustResources,
    SaveCheckpoint,
    Evaluate,
    RollBack,
    StopRun,
    AcknowledgeSave,
    AcknowledgeArchive,
    AcknowledgeMove,
    DropCopy,
    ReportDamage,
    ReportStall,
)
_KINDS = {kind.__name__: kind for kind in _ALL}


def to_json(command: Command) -> dict[str, Any]:
    """Return ``command`` as JSON, to tell it to another rank."""
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
