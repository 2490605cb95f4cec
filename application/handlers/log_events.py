"""Logs events as sentences for a person."""

from __future__ import annotations

import re
import time
from pathlib import PurePath
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import SaveReason
from holdfast.domain.errors import TrainingError
from holdfast.domain.events import (
    ArchiveFailed,
    BatchSplit,
    CheckpointArchived,
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    ContractWeakened,
    DataDrifted,
    DataStalled,
    HandlerFailed,
    MemoryExhausted,
    ResourcesAdjusted,
    RollBackSkipped,
    RolledBack,
    RunFailed,
    RunStalled,
    RunStarted,
    StopRequested,
    SuiteEvaluated,
    SuiteFailed,
    UpdateDropped,
)
from holdfast.domain.resources.balance_policy import Knob

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.events import Event

_SECONDS_REMEMBERED = 3600.0
_FIRST = 5  # steps of a new run, before which no batch is ready ahead
_KNOBS = {
    Knob.PREFETCH: "batches ahead",
    Knob.THREADS: "reading threads",
    Knob.MICRO_BATCH: "rows of a micro-batch",
    Knob.SAVE_EVERY: "steps between checkpoints",
}


@final
class LogEvents:
    """Logs the events that matter to a person, one line each, and each problem once.

    The error that ends a run is left to the caller, who receives it. A problem is not logged again within an hour,
    unless a save that had failed has succeeded in the meantime.
    """

    def __init__(self, log_line: Callable[[str], object], now: Callable[[], float] = time.monotonic) -> None:
        self._log_line = log_line
        self._now = now
        self._told: dict[str, float] = {}
        self._unsaved: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Log ``event``, if it is worth a line."""
        if isinstance(event, CheckpointSaved):
            self._told = {kind: when for kind, when in self._told.items() if kind not in self._unsaved}
            self._unsaved.clear()
        if (line := self._sentence_of(event)) is not None:
            self._log_line(line)

    def _sentence_of(self, event: Event) -> str | None:
        match event:
            case RunFailed(_, TrainingError() as error):
                self._is_new(str(error))
                return None
            case CheckpointFailed(progress, reason, problem):
                if reason in (SaveReason.FINAL, SaveReason.PREEMPT):
                    return None  # it ends the run with an error that reports it
                is_new = self._is_new(problem)
                self._unsaved.add(_kind(problem))
                if reason == SaveReason.EXCEPTION:
                    return f"step {progress.step} · NOT SAVED: {problem}" if is_new else None
                return sentence_of(event) if is_new else f"step {progress.step} · NOT SAVED, for the same reason"
            case HandlerFailed(_, _, TrainingError() as error) if not self._is_new(str(error)):
                return None
            case _:
                return sentence_of(event)

    def _is_new(self, problem: str) -> bool:
        """Return whether no problem with the same words, numbers aside, was logged recently."""
        kind, now = _kind(problem), self._now()
        is_new = kind not in self._told or now - self._told[kind] >= _SECONDS_REMEMBERED
        if is_new:
            self._told[kind] = now
        return is_new


def _kind(problem: str) -> str:
    return re.sub(r"\d+", "", problem)


def sentence_of(event: Event) -> str | None:
    """Return ``event`` as a sentence, None if metrics report it better."""
    return _of_training(event) or _of_checkpoints(event)


def _of_training(event: Event) -> str | None:  # noqa: C901, PLR0911, PLR0912  a table of events
    match event:
        case RunStarted(progress):
            return f"resumed at step {progress.step}" if progress.step else None
        case UpdateDropped(progress, reason):
            return f"step {progress.step} · update DROPPED: {reason}"
        case MemoryExhausted(progress, micro_batch, _):
            return f"step {progress.step + 1} does not fit into memory with micro-batches of {micro_batch} rows"
        case BatchSplit(_, micro_batch):
            return f"micro-batches of {micro_batch} from now on; the result is the same but for rounding"
        case ResourcesAdjusted(progress, knob, before, after, reason):
            return f"step {progress.step} · {_KNOBS[knob]} from {before} to {after}: {reason}"
        case DataDrifted(progress, reference, verdict, _):
            return f"step {progress.step} · the data differ from {reference}: {verdict}"
        case ContractWeakened(progress, reasons):
            return f"from step {progress.step} on, results are equal up to rounding only: {'; '.join(reasons)}"
        case RolledBack(progress, from_step, reason):
            return f"step {from_step} · ROLLED BACK to step {progress.step}: {reason}"
        case RollBackSkipped(progress, reason):
            return f"step {progress.step} · {reason}; training continues, as there is no checkpoint to roll back to"
        case DataStalled(progress, seconds):
            cause = "the first batches are being read" if progress.step < _FIRST else "reading is slower than training"
            return f"step {progress.step + 1} · waited {seconds:.1f} s for data: {cause}"
        case SuiteEvaluated() | SuiteFailed():
            return _of_suites(event)
        case RunStalled(progress, seconds, _):
            return f"step {progress.step} · continues after {seconds:.0f} s without progress"
        case StopRequested(progress, reason, _):
            return f"step {progress.step} · stopping: {reason}"
        case RunFailed(progress, error):
            return f"failed after step {progress.step}: {error or type(error).__name__}"
        case HandlerFailed(name, _, TrainingError() as error):
            return str(error) if name == RunFailed.__name__ else f"training continues, but {error}"
        case HandlerFailed(name, handler, error):
            outcome = "" if name == RunFailed.__name__ else " and training continues"
            return f"{handler} failed on {name}{outcome}: {type(error).__name__}: {error}"
        case _:
            return None


def _of_suites(event: SuiteEvaluated | SuiteFailed) -> str:
    if isinstance(event, SuiteFailed):
        goes_on = "" if event.stall_seconds else ", training continues"  # the run waits at its end only
        return f"step {event.step} · NOT EVALUATED by suites{goes_on}: {event.problem}"
    waited = f", waited for {event.stall_seconds:.0f} s" if event.stall_seconds >= 1 else " beside training"
    return f"step {event.step} · suites: {first_metrics(event.results)}, {event.seconds:.0f} s{waited}"


def first_metrics(results: Mapping[str, Mapping[str, float]]) -> str:
    """Return the first metric of each task of ``results`` in words."""
    first = ((task, next(iter(figures.items()), None)) for task, figures in results.items())
    return ", ".join(task if found is None else f"{task} {found[0]} {found[1]:.4f}" for task, found in first)


def _of_checkpoints(event: Event) -> str | None:  # noqa: PLR0911  a table of events
    match event:
        case CheckpointSaved(progress, location, reason, seconds, stall):
            cost = f"{seconds:.2f} s" if stall > seconds / 2 else f"{seconds:.2f} s, training waited {stall:.2f} s"
            return f"step {progress.step} · {PurePath(location).name} saved ({reason}), {cost}"
        case CheckpointFailed(progress, _, problem):
            return f"step {progress.step} · NOT SAVED, training continues and the next save tries again: {problem}"
        case CheckpointRejected(name, reason, location):
            return f"{name} is damaged ({reason}): moved to {location}; an older checkpoint is used, if there is one"
        case CheckpointArchived(step, location, seconds):
            return f"step {step} · archived in {location}, {seconds:.2f} s beside training"
        case ArchiveFailed(step, problem):
            return f"step {step} · NOT ARCHIVED, the next checkpoint is tried: {problem}"
        case CheckpointMoved(step, source, target, reason):
            return f"step {step} · moved from {source} to {target}: {reason}"
        case _:
            return None
