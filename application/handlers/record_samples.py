"""Records the texts that the model generates at its evaluations."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.events import RolledBack, RunStarted, TextGenerated


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
