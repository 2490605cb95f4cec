"""Restarts a run when its process dies."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections import deque
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO, final

import psutil

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.bootstrap.process.exit_codes import ExitCode, cause_of, code_of_child, code_of_signal, ending_of
from holdfast.bootstrap.process.signals import MILD, leave_lost_terminal, stopping_signals
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_reading.growing_file import newest_records
from holdfast.bootstrap.run_reading.run_state import last_step
from holdfast.domain.errors import StateError
from holdfast.domain.fault_tolerance.restart_policy import GiveUp, ProcessExit, RestartPolicy
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType

_MARGIN_SECONDS = 5.0  # torchrun ends its processes by force when the grace period is over, and tells how they ended
_POLL_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_PATIENCE_SECONDS = 10.0


@final
class Supervisor:
    """Runs ``command``, which trains in ``folder``, and restarts it according to ``policy``.

    The signals of ``stopping_signals`` are passed on. After a signal nothing is restarted, and processes that remain
    after ``grace_seconds`` are killed. A run that ``heartbeats`` reports as stalled is killed too. Before each start
    all processes of the last start are killed, so that two never train in one folder. Each death, except a final one
    without a problem, is a line of ``restarts.jsonl``. The run prints to ``output``, by default to the streams of this
    process. ``stopped_by`` is the last signal.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        policy: RestartPolicy,
        heartbeats: HeartbeatMonitor,
        *,
        grace_seconds: float,
        report: Callable[[str], object],
        output: TextIO | None = None,
    ) -> None:
        self._command = command
        self._layout = RunLayout(folder)
        self._restarts = JsonLines(self._layout.restarts)
        self._policy = policy
        self._heartbeats = heartbeats
        self._grace_seconds = grace_seconds
        self._report = report
        self._output = output
        self._deaths: list[ProcessExit] = []
        self._signals: deque[int] = deque()
        self.stopped_by: int | None = None

    def run(self) -> int:
        """Return the exit code of the last start."""
        _adopt_orphans()
        with self._hearing_signals(), closing(self._restarts):
            while True:
                began, before = time.monotonic(), self._layout.newest_durable_step()
                code = self._start()
                _kill_descendants()
                death = ProcessExit(ending_of(code), self._layout.newest_durable_step() > before)
                seconds = self._after(code, death, time.monotonic() - began)
                if seconds is None:
                    return code
                if not self._pause(seconds):
                    return code_of_signal(self._signals[0])

    def _start(self) -> int:
        """Run ``command`` once; return its exit code, as a shell reports it."""
        self._heartbeats.reset()
        # in a process group of its own: the terminal's Ctrl-C reaches only this process, which passes it on once
        process = subprocess.Popen(self._command, process_group=0, stdout=self._output)  # noqa: S603  this very program
        deadline, is_stalled = None, False
        while (code := process.poll()) is None:
            while self._signals:
                number = self._signals.popleft()
                process.send_signal(number)
                if deadline is None and number not in MILD:
                    deadline = time.monotonic() + self._grace_seconds + _MARGIN_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                self._report(f"the run has not ended within {self._grace_seconds:g} s of the signal: killed")
                process.kill()
            if self._heartbeats.is_stalled():
                self._report("no process of the run sends a heartbeat: killed")
                is_stalled = True
                process.kill()
            time.sleep(_POLL_SECONDS)
        if is_stalled:
            return ExitCode.RESTART_NEEDED
        return code_of_child(code)

    def _after(self, code: int, death: ProcessExit, lived: float) -> float | None:
        """Record the death; return the seconds until the next start, None if the run is not restarted."""
        self._deaths.append(death)
        verdict = self._policy.after(self._deaths)
        if self.stopped_by is not None or verdict == GiveUp():
            return None
        durable = self._layout.newest_durable_step()
        last = last_step(self._layout, newest_records(self._layout.metrics))
        lost = max(0, last - durable)
        where = f"{cause_of(code)} at step {last}, {counted(lost, 'step')} after its newest checkpoint"
        record = {
            "time": datetime.now(UTC).isoformat(),
            "start": len(self._deaths),
            "code": code,
            "cause": cause_of(code),
            "seconds": round(lived, 3),
            "step": last,
            "durable_step": durable,
            "lost_steps": lost,
        }
        if isinstance(verdict, GiveUp):
            self._record({**record, "gave_up": verdict.reason})
            self._report(f"the run {where}; {verdict.reason}: see the error above, then start the run by hand")
            return None
        self._record({**record, "pause_seconds": verdict.seconds})
        self._report(f"the run {where}; it is started again in {verdict.seconds:g} s")
        return verdict.seconds

    def _record(self, record: dict[str, object]) -> None:
        try:
            self._restarts.append(record)
        except StateError as error:  # the record is buffered, and the run can be restarted without it
            self._report(str(error))

    def _pause(self, seconds: float) -> bool:
        """Wait ``seconds``; return whether they passed without a signal."""
        end = time.monotonic() + seconds
        while not self._signals and (left := end - time.monotonic()) > 0:
            time.sleep(min(_POLL_SECONDS, left))
        return not self._signals

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        def hear(number: int, _frame: FrameType | None) -> None:
            leave_lost_terminal()
            self.stopped_by = number
            self._signals.append(number)

        previous = {number: signal.signal(number, hear) for number in stopping_signals()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends, so that ``_kill_descendants`` finds it.

    Only Linux supports this; on other systems orphans are not found.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_descendants() -> int:
    """Kill all descendants of this process, stopped ones too, and wait for their end; return their number.

    A process that the kernel does not end within ten seconds is left.
    """
    killed: set[int] = set()
    while children := [process for process in psutil.Process().children(recursive=True) if process.pid not in killed]:
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children, timeout=_PATIENCE_SECONDS)
        killed |= {process.pid for process in children}
    return len(killed)


@final
class HeartbeatMonitor:
    """Watches the heartbeats in ``folder`` from outside the run; without any for ``limit`` seconds the run is stalled.

    Processes that have sent no heartbeat yet or have ended are ignored, and time when this process is suspended does
    not count.
    """

    def __init__(self, folder: Path, limit: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._limit = limit
        self._clock = clock
        self._stamps: dict[str, int] = {}
        self._looked_at = clock()
        self._seconds = 0.0

    def reset(self) -> None:
        """Forget the heartbeats of an earlier start."""
        for path in self._folder.glob("rank*.json"):
            path.unlink(missing_ok=True)
        self._stamps, self._seconds, self._looked_at = {}, 0.0, self._clock()

    def is_stalled(self) -> bool:
        """Return whether the run is stalled; checks only after a tenth of the limit, or one second, else False."""
        interval = min(1.0, self._limit / 10)
        if (elapsed := self._clock() - self._looked_at) < interval:
            return False
        self._looked_at += elapsed
        stamps = dict(self._beats())
        is_silent = bool(stamps) and stamps == self._stamps
        self._stamps = stamps
        self._seconds = self._seconds + min(elapsed, 2 * interval) if is_silent else 0.0
        return self._seconds > self._limit

    def _beats(self) -> Iterator[tuple[str, int]]:
        """Yield the file name of each living process's heartbeat, and the time of its writing in ns."""
        for path in self._folder.glob("rank*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # it has just been replaced or removed
                if psutil.pid_exists(parse_json(read_regular(path))["pid"]):
                    yield path.name, path.stat().st_mtime_ns
