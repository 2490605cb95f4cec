"""A trial that is trained by a child process, which is started again when it dies."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.regular_file import regular
from holdfast.bootstrap.process.exit_codes import ExitCode, cause_of, code_of_child, ending_of
from holdfast.bootstrap.process.supervisor import HeartbeatMonitor
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.run_lock import holder_of, is_locked
from holdfast.bootstrap.run_folder.study_folder import VerdictFile
from holdfast.bootstrap.run_reading.growing_file import GrowingRecords
from holdfast.domain.errors import ConfigurationError, DataError, StateError
from holdfast.domain.fault_tolerance.restart_policy import Ending, GiveUp, ProcessExit, RestartPolicy
from holdfast.domain.run_end import LifecycleState, RunEnd
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.tuning.trial import TrialEnd, TrialState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.run_folder.study_folder import StudyLayout
    from holdfast.domain.tuning.search_space import Value
    from holdfast.domain.tuning.trial import TrialVerdict

_TAIL_BYTES = 1 << 16
_MOST_ERRORS = 2  # in a row without a new checkpoint: the same error would come again
_LONGEST_NOTE = 500


@final
@dataclass(frozen=True, slots=True)
class TrialRules:
    """The rules for all trials of a study: what is measured, and how processes are restarted and ended.

    ``silent_seconds`` are the seconds without a heartbeat after which a process counts as hung. A process that has not
    ended ``grace_seconds`` and ``margin_seconds`` after a stop is killed.
    """

    metric: str
    takes_best: bool
    policy: RestartPolicy
    silent_seconds: float
    grace_seconds: float
    margin_seconds: float = 5.0


@final
class TrialProcess:
    """Trains trial ``number`` in its run folder by the command ``train``; a ``TrialRun``.

    ``claim`` is the descriptor of ``claim_trial``, which ``close`` closes. ``command`` returns the arguments of the
    process for the parameters of the trial. The process starts once no other one trains in the folder: the process of
    a study that was killed saves and ends by itself.
    """

    def __init__(
        self,
        number: int,
        layout: StudyLayout,
        claim: int,
        rules: TrialRules,
        command: Callable[[Mapping[str, Value]], Sequence[str]],
        environment: Mapping[str, str],
        report: Callable[[str], object],
    ) -> None:
        self._name = f"trial {number}"
        self._run = RunLayout(layout.trial(number))
        self._log = layout.log(number)
        self._claim = claim
        self._rules = rules
        self._command_for = command
        self._command: Sequence[str] = ()
        self._environment = environment
        self._report = report
        self._events = TrialEvents(self._run.root, rules.metric, takes_best=rules.takes_best)
        self._verdicts = VerdictFile(self._run.root)
        self._answered = {verdict.step for verdict in self._verdicts.all()}
        self._heartbeats = HeartbeatMonitor(self._run.heartbeats, rules.silent_seconds)
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths: list[ProcessExit] = []
        self._starts_at = 0.0
        self._log_begin = 0
        self._durable = 0
        self._deadline: float | None = None
        self._is_stopping, self._is_waiting = False, False

    def start(self, parameters: Mapping[str, Value]) -> None:
        """Let the next ``poll`` start the process."""
        self._command = self._command_for(parameters)

    def measurements(self) -> Sequence[tuple[int, float]]:
        """Return the new evaluations; raises ``ConfigurationError`` if they do not measure the study's metric."""
        self._events.read()
        return self._events.take()

    def answer(self, verdict: TrialVerdict) -> None:
        """Write the verdict into the run folder, unless there is one on this step."""
        if verdict.step not in self._answered:
            self._verdicts.add(verdict)
            self._answered.add(verdict.step)

    def poll(self) -> TrialEnd | None:
        """Start the process if it is due, and return the end of the trial once there is one.

        Raises ``DataError`` or ``StateError`` if the process ended for a reason that other trials would meet too.
        """
        if self._process is None:
            self._start_if_due()
            return None
        if self._heartbeats.is_stalled():
            self._report(f"{self._name}: no process sends a heartbeat: killed")
            self._kill()
        if (returncode := self._process.poll()) is None:
            return None
        self._process = None
        return self._after(code_of_child(returncode))

    def request_stop(self, number: int | None = None) -> None:
        """Send the signal ``number``, SIGTERM if it is None, to the process."""
        self._is_stopping = True
        self._deadline = time.monotonic() + self._rules.grace_seconds + self._rules.margin_seconds
        if self._process is not None:
            self._process.send_signal(number or signal.SIGTERM)

    def has_stopped(self) -> bool:
        """Return whether the process has ended; kills it once the grace period is over."""
        if self._process is None or self._process.poll() is not None:
            return True
        if self._deadline is not None and time.monotonic() > self._deadline:
            seconds = self._rules.grace_seconds
            self._report(f"{self._name}: it has not ended within {seconds:g} s of the stop: killed")
            self._kill()
        return False

    @property
    def is_closed(self) -> bool:
        """Return whether ``close`` was called."""
        return self._claim < 0

    def close(self) -> None:
        """Kill the process if it still runs, and release the claim."""
        if self._process is not None and self._process.poll() is None:
            self._kill()
            self._process.wait()
        self._process = None
        self._events.close()
        self._verdicts.close()
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1

    def _start_if_due(self) -> None:
        if self._is_stopping or time.monotonic() < self._starts_at:
            return
        if is_locked(self._run.root):
            if not self._is_waiting:
                self._is_waiting = True
                self._report(f"{self._name}: waiting until {holder_of(self._run.root) or 'another process'} has ended")
            return
        self._is_waiting = False
        self._heartbeats.reset()
        self._durable = self._run.newest_durable_step()
        try:
            with open(self._log, "ab", opener=regular) as log:
                self._log_begin = log.tell()
                self._process = subprocess.Popen(  # noqa: S603  this very program
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    process_group=0,  # Ctrl-C is for this process, which passes it on once
                )
        except OSError as error:
            msg = f"{self._name} cannot be started, {explain(error)}"
            raise StateError(msg) from error

    def _after(self, code: int) -> TrialEnd | None:
        """Return the end of the trial after its process ended with ``code``, None if another one is to be started."""
        self._events.read()
        if code == ExitCode.FINISHED:
            return self._events.end()
        words = self._last_error() or cause_of(code)
        if code == ExitCode.CONFIGURATION:
            return self._events.failure(words)
        if code == ExitCode.DATA:
            msg = f"{self._name} cannot read its data: {words}; the same command continues the study"
            raise DataError(msg)
        ending = (
            Ending.CRASHED if ending_of(code) is Ending.FINAL else ending_of(code)
        )  # a signal was not for a restart
        self._deaths.append(ProcessExit(ending, self._run.newest_durable_step() > self._durable))
        verdict = self._policy_after(code).after(self._deaths)
        if not isinstance(verdict, GiveUp):
            self._starts_at = time.monotonic() + verdict.seconds
            self._report(f"{self._name}: its process {cause_of(code)}; it is started again in {verdict.seconds:g} s")
            return None
        if code == ExitCode.STATE:
            msg = f"{self._name} cannot go on: {words}; the same command continues the study"
            raise StateError(msg)
        return self._events.failure(words)

    def _policy_after(self, code: int) -> RestartPolicy:
        policy = self._rules.policy
        if code != ExitCode.FAILED:
            return policy
        fruitless = min(policy.crash_loop, _MOST_ERRORS)
        return RestartPolicy(policy.max_restarts, fruitless, policy.first_seconds, policy.longest_seconds)

    def _last_error(self) -> str:
        """Return the sentence of the last error that the process printed in this start."""
        with suppress(OSError), self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begin, size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
            return errors[-1][:_LONGEST_NOTE] if errors else ""
        return ""

    def _kill(self) -> None:
        """Kill the process, and those that it started, as far as they are in its group."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


@final
class TrialEvents:
    """Follows ``events.jsonl`` of the run folder ``root``; ``metric`` is the one that the study compares.

    If ``takes_best``, the best evaluation of a complete trial counts, otherwise its last one.
    """

    def __init__(self, root: Path, metric: str, *, takes_best: bool) -> None:
        self._file = GrowingRecords(RunLayout(root).events)
        self._metric = metric
        self._takes_best = takes_best
        self._values: dict[int, float] = {}
        self._new: list[tuple[int, float]] = []
        self._stop: Mapping[str, Any] = {}
        self._end = RunEnd()
        self._tokens = 0

    def read(self) -> None:
        """Read what was added to the file; raises ``ConfigurationError`` if an evaluation lacks the metric."""
        if self._file.poll():
            records, self._file.records = self._file.records, []
            for record in records:
                self._new += self._measured(record)

    def take(self) -> list[tuple[int, float]]:
        """Return the steps and values of the evaluations after the first step that were not returned before."""
        events, self._new = self._new, []
        return events

    def end(self) -> TrialEnd:
        """Return the end of the trial after its process has ended well."""
        values = [*self._values.values()]
        last = values[-1] if values else None
        if self._end.at_finish is LifecycleState.STOPPED:
            finite = last if last is not None and math.isfinite(last) else None
            return TrialEnd(TrialState.PRUNED, finite, self._tokens, str(self._stop.get("reason")))
        if last is None:
            return TrialEnd(TrialState.FAILED, None, self._tokens, "no evaluation was made, as no document is held out")
        finite_values = [value for value in values if math.isfinite(value)]
        best = max if is_higher_better(self._metric) else min
        value = best(finite_values, default=math.nan) if self._takes_best else last
        if not math.isfinite(value):
            return TrialEnd(TrialState.FAILED, None, self._tokens, f"{self._metric} is not finite")
        return TrialEnd(TrialState.COMPLETE, value, self._tokens)

    def failure(self, note: str) -> TrialEnd:
        """Return the end of a trial that failed as ``note`` says."""
        return TrialEnd(TrialState.FAILED, None, self._tokens, note)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _measured(self, record: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
        self._tokens = record["tokens"] if isinstance(record.get("tokens"), int) else self._tokens
        self._end.add_record(record)
        match record.get("event"):
            case "StopRequested":
                self._stop = record
            case "EvaluationCompleted" if record["step"] > 0:
                value = self._value(record)
                self._values.pop(record["step"], None)
                self._values[record["step"]] = value
                yield record["step"], value

    def _value(self, record: Mapping[str, Any]) -> float:
        metrics = _metrics_of(record)
        if self._metric not in metrics:
            msg = f"tune.metric is {self._metric}, but an evaluation of this run measures {', '.join(metrics)}: choose "
            msg += "one of these"
            raise ConfigurationError(msg)
        return metrics[self._metric]


def _metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of an evaluation under the names of their metrics."""
    parts: Mapping[str, Any] = record.get("parts", {})
    figures = {"": record, **{f"/{name}": part for name, part in parts.items()}}
    return {
        f"eval_{kind}{name}": float(figure[kind])
        for name, figure in figures.items()
        for kind in ("loss", "bits_per_byte", "reward_accuracy")
        if kind in figure
    }
