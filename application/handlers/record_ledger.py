"""Records the steps of a run, and the documents in them, in the ledger."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from holdfast.application.thread_pool import BackgroundWorker
from holdfast.domain.errors import TrainingError
from holdfast.domain.run_end import RunEnd
from holdfast.ports.ledger import CheckpointRecord, StepRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.domain.data.batch import Spans
    from holdfast.domain.events import (
        CheckpointSaved,
        DataEnded,
        Event,
        RolledBack,
        RunFailed,
        RunFinished,
        RunStarted,
        StepCompleted,
        StopRequested,
    )
    from holdfast.domain.training.step_outcome import StepOutcome
    from holdfast.ports.ledger import Ledger, Rejects
    from holdfast.ports.state_store import CheckpointInfo

    SpansOf = Callable[[int, int], Spans]

_INTERVAL_SECONDS = 1.0
_MOST_STEPS = 256
_PATIENCE_SECONDS = 30.0


class _Step(NamedTuple):
    step: int
    first_sample: int
    end_sample: int
    outcome: StepOutcome


@final
class RecordLedger:
    """Passes the steps of ``run`` to ``ledger`` in a thread, some together: those of ``interval_seconds``.

    ``spans_of`` returns the spans of the samples from its first argument up to its second; it is called in the thread.
    ``details`` describe the run as JSON. The training thread only notes the number of the step and its samples; the
    thread reads the loss, which waits for the device. An error of the ledger is raised at a later event, where the bus
    turns it into ``HandlerFailed``. The run waits for the thread at its start, before each checkpoint and at its end,
    so the steps of a checkpoint are recorded before it is saved; ``settle`` raises ``TrainingError`` if that takes more
    than ``patience_seconds``.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: str,
        spans_of: SpansOf,
        details: Mapping[str, object],
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
        patience_seconds: float = _PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._run = run
        self._spans_of = spans_of
        self._details = details
        self._interval = interval_seconds
        self._patience = patience_seconds
        self._clock = clock
        self._wall = wall
        self._thread = BackgroundWorker("ledger of steps")
        self._steps: list[_Step] = []
        self._samples = 0
        self._passed = -math.inf
        self._end = RunEnd()

    def on_start(self, event: RunStarted) -> None:
        """Begin the run, or continue it: later steps of an earlier process are about to be taken again."""
        begun, step = self._wall(), event.progress.step
        self._samples = event.progress.cursor.samples
        self._thread.submit(lambda: self._ledger.begin_run(self._run, self._details, begun))
        self._thread.submit(lambda: self._ledger.roll_back(self._run, step))
        self.settle(event)

    def on_step(self, event: StepCompleted) -> None:
        """Note a step."""
        samples = event.progress.cursor.samples
        self._steps.append(_Step(event.progress.step, self._samples, samples, event.outcome))
        self._samples = samples
        now = self._clock()
        if now - self._passed >= self._interval or len(self._steps) >= _MOST_STEPS:
            self._passed = now
            self._pass_on()
            self._thread.raise_errors()

    def on_roll_back(self, event: RolledBack) -> None:
        """Mark the steps after that of the checkpoint; the run continues with the next samples."""
        step = event.progress.step
        self._pass_on()
        self._samples = event.progress.cursor.samples
        self._thread.submit(lambda: self._ledger.roll_back(self._run, step))

    def on_save(self, event: CheckpointSaved) -> None:
        """Record a checkpoint."""
        saved = CheckpointRecord(event.progress.step, event.location, str(event.reason), self._wall())
        self._thread.submit(lambda: self._ledger.checkpoint(self._run, saved))
        self._thread.raise_errors()

    def on_stored(self, stored: Sequence[CheckpointInfo]) -> None:
        """Record the checkpoints that are there at a start: a process that was killed after a save did not."""
        records = [
            CheckpointRecord(info.progress.step, info.location, str(info.reason), info.saved_at)
            for info in stored
            if info.saved_at > 0  # else it is of an earlier version, which does not know the time
        ]
        self._thread.submit(lambda: [self._ledger.checkpoint(self._run, each) for each in records])
        self._thread.raise_errors()

    def on_stop(self, event: DataEnded | StopRequested) -> None:
        """Note why the run is about to end."""
        self._end.add(event)

    def on_end(self, event: RunFinished | RunFailed) -> None:
        """Record the last steps and the end of the run."""
        self._end.add(event)
        ended, state = self._wall(), self._end.state.value
        self._pass_on()
        self._thread.submit(lambda: self._ledger.end_run(self._run, state, ended))
        self.settle(event)

    def reject(self, rejects: Rejects) -> None:
        """Record records that were left out; may be called from any thread once the run has started."""
        self._thread.submit(lambda: self._ledger.reject(self._run, rejects))

    def settle(self, event: Event) -> None:
        """Wait until the ledger has all steps so far; raises ``TrainingError`` if that takes too long."""
        self._pass_on()
        if not self._thread.settle(self._patience):
            msg = f"the ledger has not answered for {self._patience:.0f} s at {type(event).__name__}"
            raise TrainingError(msg)
        self._thread.raise_errors()

    def close(self) -> None:
        """End the thread once the ledger has everything, and close the ledger."""
        self._pass_on()
        self._thread.submit(self._ledger.close)
        self._thread.close(self._patience)

    def _pass_on(self) -> None:
        if steps := self._steps:
            self._steps = []
            self._thread.submit(lambda: self._record(steps))

    def _record(self, steps: Sequence[_Step]) -> None:
        records = StepRecords(
            step=np.array([one.step for one in steps], np.int64),
            first_sample=np.array([one.first_sample for one in steps], np.int64),
            end_sample=np.array([one.end_sample for one in steps], np.int64),
            loss=np.array([one.outcome.loss for one in steps], np.float64),
            tokens=np.array([one.outcome.num_tokens for one in steps], np.int64),
        )
        self._ledger.record(self._run, records, self._spans_of(steps[0].first_sample, steps[-1].end_sample))
