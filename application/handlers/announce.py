"""What a person wants to read while a run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from domain.events import (
    BatchSplit,
    CheckpointRejected,
    CheckpointSaved,
    DataStalled,
    HandlerFailed,
    MemoryExhausted,
    RunFailed,
    RunStarted,
    StopRequested,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from domain.events import Event


@final
class Announce:
    """Says the events that matter to a person, each in one line."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def __call__(self, event: Event) -> None:
        """Say ``event``, if it is worth a line."""
        if (line := sentence_of(event)) is not None:
            self._say(line)


def sentence_of(event: Event) -> str | None:  # noqa: PLR0911  a table of events
    """Return ``event`` in words, or None if figures tell it better."""
    match event:
        case RunStarted(progress):
            return f"resumed at step {progress.step}" if progress.step else None
        case CheckpointSaved(progress, location, reason, seconds):
            return f"step {progress.step} · checkpoint ({reason}) in {location}, {seconds:.2f} s"
        case CheckpointRejected(name, reason, location):
            return f"{name} is damaged ({reason}): set aside in {location}; an older one is used, if there is one"
        case MemoryExhausted(progress, micro_batch, _):
            return f"step {progress.step + 1} does not fit into memory with {micro_batch} rows at once"
        case BatchSplit(_, micro_batch):
            return f"the same batch again in micro-batches of {micro_batch}; the result does not change"
        case DataStalled(progress, seconds):
            return f"step {progress.step + 1} · waited {seconds:.1f} s for data: reading is slower than training"
        case StopRequested(progress, reason, _):
            return f"step {progress.step} · stopping: {reason}"
        case RunFailed(progress, error):
            return f"failed after step {progress.step}: {type(error).__name__}"
        case HandlerFailed(name, handler, error):
            outcome = "" if name == RunFailed.__name__ else " and training goes on"
            return f"{handler} failed on {name}{outcome}: {type(error).__name__}: {error}"
        case _:
            return None
