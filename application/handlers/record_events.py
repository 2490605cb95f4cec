"""Records the events of a run as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, final

from holdfast.domain.events import (
    ArchiveFailed,
    CheckpointArchived,
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    CompilationStarted,
    ContractWeakened,
    EvaluationProgressed,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    TextGenerated,
)
from holdfast.domain.training.step_outcome import Evaluation, Progress
from holdfast.domain.training.text_generation import GeneratedText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.events import Event

_COVERED = (StepCompleted, TextGenerated, EvaluationProgressed, CompilationStarted)


@final
class RecordEvents:
    """Writes each event as a JSON object with its time in UTC, except those whose outcome it records elsewhere."""

    def __init__(self, write: Callable[[Mapping[str, Any]], object]) -> None:
        self._write = write

    def __call__(self, event: Event) -> None:
        """Write ``event``."""
        if not isinstance(event, _COVERED):
            self._write(record_of(event))


def record_of(event: Event) -> dict[str, Any]:
    """Return ``event`` as a JSON object with its time."""
    return {"time": datetime.now(UTC).isoformat(), "event": type(event).__name__, **_flat(event)}


def _flat(event: Event) -> dict[str, Any]:
    assert is_dataclass(event)
    record: dict[str, Any] = {}
    for field in fields(event):
        match getattr(event, field.name):
            case Progress(step, tokens, cursor):
                record |= {"step": step, "tokens": tokens, "samples": cursor.samples}
            case Evaluation() as evaluation:
                record |= _figures(evaluation)
                if evaluation.parts:
                    record["parts"] = {name: _figures(part) for name, part in evaluation.parts.items()}
            case [GeneratedText(), *_] as texts:
                record[field.name] = [asdict(text) for text in texts]
            case BaseException() as error:
                record[field.name] = f"{type(error).__name__}: {error}"
            case value:
                # a record's own "event" is its kind
                record["during" if field.name == "event" else field.name] = value
    return record


def _figures(evaluation: Evaluation) -> dict[str, float]:
    if evaluation.figures:
        return {"loss": evaluation.loss, **evaluation.figures}
    bits = {"bits_per_byte": evaluation.bits_per_byte} if evaluation.num_bytes else {}
    return {"loss": evaluation.loss, **bits}


class Records(Protocol):
    """Records of steps in a file, in the order of their writing."""

    def append(self, record: Mapping[str, object]) -> None:
        """Add ``record`` at the end."""
        ...

    def cut(self, keep: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove the records for which ``keep`` is false."""
        ...


@final
class RecordSamples:
    """Writes one record for each text: its step, prompt, text, seed and time in UTC.

    The records of steps that are about to be taken again are removed.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    def on_start(self, event: RunStarted | RolledBack) -> None:
        """Remove the records of later steps."""
        self._records.cut(until(event.progress.step))

    def on_text(self, event: TextGenerated) -> None:
        """Write the texts of ``event``."""
        time = datetime.now(UTC).isoformat()
        for sample in event.samples:
            self._records.append({"step": event.progress.step, "time": time, **asdict(sample)})


def until(step: int) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a record stays when a run starts at ``step``: one of this step or before, none of a new run."""
    return lambda record: 0 < step >= record.get("step", 0)


_LONGEST_ERROR = 2000


@final
class RecordAudit:
    """Passes the events that the audit covers to ``append``: the event's name, and details that JSON can hold."""

    def __init__(self, append: Callable[[str, Mapping[str, Any]], object]) -> None:
        self._append = append

    def __call__(self, event: Event) -> None:
        """Append ``event``, if the audit covers it."""
        if (details := _details_of(event)) is not None:
            self._append(type(event).__name__, details)


def _details_of(event: Event) -> Mapping[str, Any] | None:  # noqa: C901, PLR0911  a table of events
    match event:
        case RunStarted(progress) | RunFinished(progress):
            return _where(progress)
        case CheckpointSaved(progress, location, reason):
            return {**_where(progress), "location": location, "reason": str(reason)}
        case CheckpointFailed(progress, reason, problem):
            return {**_where(progress), "reason": str(reason), "problem": problem[:_LONGEST_ERROR]}
        case CheckpointArchived(step, location):
            return {"step": step, "location": location}
        case ArchiveFailed(step, problem):
            return {"step": step, "problem": problem[:_LONGEST_ERROR]}
        case CheckpointMoved(step, source, target, reason):
            return {"step": step, "from": str(source), "to": str(target), "reason": reason}
        case ContractWeakened(progress, reasons):
            return {**_where(progress), "reasons": list(reasons)}
        case RolledBack(progress, from_step, reason):
            return {**_where(progress), "from_step": from_step, "reason": reason}
        case CheckpointRejected(name, reason, location):
            return {"name": name, "reason": str(reason), "location": location}
        case StopRequested(progress, reason, signal):
            return {**_where(progress), "reason": reason, "signal": signal}
        case RunFailed(progress, error):
            return {**_where(progress), "error": f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]}
        case _:
            return None


def _where(progress: Progress) -> dict[str, int]:
    return {"step": progress.step, "tokens": progress.tokens}
