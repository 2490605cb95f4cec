"""Trains the trials of a study, as many at once as there are workers."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol, final

from holdfast.domain.errors import TrainingError
from holdfast.domain.tuning.trial import TrialVerdict, may_begin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.domain.tuning.search_space import Value
    from holdfast.domain.tuning.trial import StudyPlan, TrialEnd
    from holdfast.ports.study import Study

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.5


@final
class StudyRunner:
    """Trains the trials of ``study`` according to ``plan``, ``num_workers`` at once, beside other processes.

    ``claim`` returns a trial for this process alone, None if another process trains it. Trials that no process trains
    any more are continued first, in the order of their numbers. ``describe`` returns the sentence on a measurement for
    which a trial is pruned.
    """

    def __init__(
        self,
        study: Study,
        plan: StudyPlan,
        num_workers: int,
        claim: Callable[[int], TrialRun | None],
        watcher: StudyWatcher,
        *,
        describe: Callable[[int, float], str],
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._plan = plan
        self._num_workers = num_workers
        self._claim = claim
        self._watcher = watcher
        self._describe = describe
        self._sleep = sleep
        self._clock = clock
        self._open: dict[int, TrialRun] = {}
        self._next_look = clock()
        self._is_over = False
        self._error: TrainingError | None = None
        self._stop_signal: int | None = None
        self._is_stopping = False
        self._has_passed_stop = False

    def request_stop(self, signal: int | None = None) -> None:
        """Ask all trials of this process to save and end; safe in a signal handler."""
        self._is_stopping, self._stop_signal = True, signal

    def run(self) -> bool:
        """Train until the study is over or a stop was requested; return whether it is over.

        Waits for the trials of other processes, and continues those that such a process leaves behind. An error ends
        the other trials of this process as a stop does, and is raised then.
        """
        try:
            while not self._has_ended():
                for number, run in list(self._open.items()):
                    self._guarded(partial(self._advance, number, run))
                self._sleep(_POLL_SECONDS)
        finally:
            for run in self._open.values():
                run.close()
        if self._error is not None:
            raise self._error
        return self._is_over

    def _has_ended(self) -> bool:
        if self._is_stopping or self._error is not None:
            self._pass_stop()
            return not [run for run in self._open.values() if not run.has_stopped()]  # each is asked
        if len(self._open) < self._num_workers and self._clock() >= self._next_look:
            self._next_look = self._clock() + _LOOK_SECONDS
            self._guarded(self._fill)
        return self._is_over

    def _pass_stop(self) -> None:
        if not self._has_passed_stop:
            self._has_passed_stop = True
            for run in self._open.values():
                run.request_stop(self._stop_signal)

    def _guarded(self, action: Callable[[], object]) -> None:
        """Call ``action``; an error of it ends the study here once the other trials have saved."""
        try:
            action()
        except TrainingError as error:
            self._error = self._error or error

    def _fill(self) -> None:
        """Open trials until all workers are busy, or none may begin now."""
        while len(self._open) < self._num_workers:
            trials = self._study.trials()
            waiting = [trial.number for trial in trials if not trial.has_ended and trial.number not in self._open]
            if any(self._take(number) for number in waiting):
                continue
            number = len(trials)
            if not may_begin(number, trials, self._study.parallel):
                return
            if not self._plan.permits(number, trials):
                self._is_over = all(trial.has_ended for trial in trials[: self._plan.trials])
                return
            self._study.add(number)

    def _take(self, number: int) -> bool:
        """Begin or continue trial ``number``, unless another process trains it or has ended it meanwhile."""
        if (run := self._claim(number)) is None:
            return False
        if self._study.trials()[number].has_ended:
            run.close()
            return False
        self._open[number] = run
        parameters = self._study.suggest(number)
        run.start(parameters)
        self._watcher.on_begin(number, parameters)
        return True

    def _advance(self, number: int, run: TrialRun) -> None:
        if self._is_stopping or self._error is not None:
            return
        self._judge(number, run)  # what was measured before this start is answered before the trial goes on
        if (end := run.poll()) is None:
            return
        self._judge(number, run)
        self._study.finish(number, end)
        del self._open[number]
        run.close()
        self._next_look = self._clock()
        self._watcher.on_end(number, end)

    def _judge(self, number: int, run: TrialRun) -> None:
        for step, value in run.measurements():
            is_pruned = self._study.report(number, step, value)
            verdict = TrialVerdict(step, self._describe(step, value) if is_pruned else None)
            run.answer(verdict)
            self._watcher.on_measurement(number, step, value, verdict)


class TrialRun(Protocol):
    """The training of one trial, which no other process trains as long as this object is open."""

    def start(self, parameters: Mapping[str, Value]) -> None:
        """Begin to train, or continue, with ``parameters``."""

    def measurements(self) -> Sequence[tuple[int, float]]:
        """Return the steps and values of the evaluations since the last call; at first those of all starts.

        Raises ``TrainingError`` if the evaluations do not measure what the study asks for.
        """

    def answer(self, verdict: TrialVerdict) -> None:
        """Pass on the study's answer to an evaluation; one that was passed on before changes nothing."""

    def poll(self) -> TrialEnd | None:
        """Do what is due; return the end of the trial, None while it is not there.

        Raises ``TrainingError`` if training failed for a reason that other trials would meet too.
        """

    def request_stop(self, number: int | None = None) -> None:
        """Ask the training to save and end, as by the signal ``number``; the trial can be continued later."""

    def has_stopped(self) -> bool:
        """Return whether nothing is trained here any more; ends by force what does not end in time after a stop."""
        ...

    def close(self) -> None:
        """End what still trains, by force, and let other processes train the trial; may be called twice."""


class StudyWatcher(Protocol):
    """The receiver of what happens to the trials of this process."""

    def on_begin(self, number: int, parameters: Mapping[str, Value]) -> None:
        """Receive the parameters of a trial that begins or continues."""

    def on_measurement(self, number: int, step: int, value: float, verdict: TrialVerdict) -> None:
        """Receive the evaluation of a trial, and its verdict."""

    def on_end(self, number: int, end: TrialEnd) -> None:
        """Receive the end of a trial, which is recorded."""
