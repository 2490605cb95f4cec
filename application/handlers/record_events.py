"""Records the events of a run as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from holdfast.domain.events import CompilationStarted, EvaluationProgressed, StepCompleted, TextGenerated
from holdfast.domain.training.progress import Progress
from holdfast.domain.training.step_outcome import Evaluation
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
