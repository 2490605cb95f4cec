"""Records the events of a run as JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from holdfast.domain.events import StepCompleted
from holdfast.domain.training.progress import Progress
from holdfast.domain.training.step_outcome import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.events import Event


@final
class RecordEvents:
    """Writes each event as a JSON object with its time in UTC, except ``StepCompleted``, which the metrics cover."""

    def __init__(self, write: Callable[[Mapping[str, Any]], object]) -> None:
        self._write = write

    def __call__(self, event: Event) -> None:
        """Write ``event``."""
        if not isinstance(event, StepCompleted):
            self._write(record_of(event))


def record_of(event: Event) -> dict[str, Any]:
    """Return ``event`` as a JSON object with its time."""
    return {"time": datetime.now(UTC).isoformat(), "event": type(event).__name__, **_flat(event)}


def _flat(event: Event) -> dict[str, Any]:
    assert is_dataclass(event)
    record: dict[str, Any] = {}
    for field in fields(event):
        match getattr(event, field.name):
            case Progress(step, tokens, _):
                record |= {"step": step, "tokens": tokens}
            case Evaluation() as evaluation:
                record |= {"loss": evaluation.loss, "bits_per_byte": evaluation.bits_per_byte}
            case BaseException() as error:
                record[field.name] = f"{type(error).__name__}: {error}"
            case value:
                # a record's own "event" is its kind
                record["during" if field.name == "event" else field.name] = value
    return record
