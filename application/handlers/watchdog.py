"""A watchdog thread that notices when training hangs."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Protocol, final

from holdfast.domain.commands import ReportStall
from holdfast.domain.events import RunFailed, RunFinished, RunStarted, StepCompleted
from holdfast.domain.fault_tolerance.liveness import Activity, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.domain.events import Event
    from holdfast.domain.fault_tolerance.liveness import Timeouts

_REMEMBERED_STEPS = 64
_TICKS_BETWEEN_FIGURES = 12
_JOIN_SECONDS = 1.0  # then a thread that waits for a dead disk is abandoned


class Heartbeats(Protocol):
    """The place where each rank reports that it is alive."""

    def tell(self, beat: Heartbeat) -> None:
        """Replace this rank's heartbeat."""

    def all(self) -> Sequence[Heartbeat]:
        """Return the last heartbeat of each rank."""

    def leave(self) -> None:
        """Remove this rank's heartbeat."""


class Alarm(Protocol):
    """The reaction to a run that hangs; called in the watchdog's thread."""

    def ring(self, report: ReportStall) -> None:
        """Report the hang, with the stacks of all threads."""

    def give_up(self, report: ReportStall) -> None:
        """End this process, if that is allowed: the training thread does not respond."""


@final
class Watchdog:
    """Sends heartbeats for its rank, and rings ``alarm`` when the training thread makes no progress for too long.

    Every event counts as progress. ``doing`` returns the activity of the thread of a given number. If there is still no
    progress after ``min_seconds`` more, the alarm gives up. The time in which the whole process was suspended, as by
    Ctrl-Z, does not count.
    """

    def __init__(
        self,
        patience: Timeouts,
        rank: int,
        heartbeats: Heartbeats,
        alarm: Alarm,
        *,
        doing: Callable[[int], Activity],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience = patience
        self._heartbeats = heartbeats
        self._alarm = alarm
        self._doing = doing
        self._clock = clock
        self.interval = min(5.0, patience.min_seconds / 10)
        self._beat = Heartbeat(rank, 0, socket.gethostname(), os.getpid(), 0, Activity.STEP)
        self._signs, self._known_signs, self._step = 0, 0, 0
        self._steps: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_STEPS)
        self._last_tick = clock()
        self._waited, self._rang_at = 0.0, math.inf
        self._seen: dict[int, tuple[int, float]] = {}
        self._everyone: Sequence[Heartbeat] = ()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        """Count ``event`` as progress of this thread."""
        self._signs += 1
        if isinstance(event, StepCompleted):
            self._step = event.progress.step
            self._steps.append((event.outcome.step_seconds, event.outcome.supply.wait_seconds))
        elif isinstance(event, RunStarted):
            self._step, self._last_tick = event.progress.step, self._clock()
            watched = threading.get_ident()
            self._tell(watched)  # before the first step, so that all ranks can name one that stops in it
            self._thread = threading.Thread(target=self._watch, args=(watched,), name="watchdog", daemon=True)
            self._thread.start()
        elif isinstance(event, (RunFinished, RunFailed)):
            self.close()

    def close(self) -> None:
        """Stop watching; a second call has no effect."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_JOIN_SECONDS)
            self._heartbeats.leave()

    def figures(self) -> Mapping[str, float]:
        """Return the metrics for the monitors of a run of several ranks: the slowest rank and its times."""
        seconds = {beat.rank: beat.step_seconds + beat.data_seconds for beat in self._everyone}
        if len(seconds) < 2:
            return {}
        slowest = max(seconds, key=lambda rank: seconds[rank])
        return {
            "slowest_rank": slowest,
            "slowest_rank_seconds": seconds[slowest],
            "median_rank_seconds": median(seconds.values()),
        }

    def _watch(self, watched: int) -> None:
        while not self._stopped.wait(self.interval):
            self.tick(watched)

    def tick(self, watched: int) -> None:
        """Check the thread numbered ``watched`` once; the watchdog's own thread does so at each ``interval``."""
        now = self._clock()
        elapsed, self._last_tick = min(now - self._last_tick, 2 * self.interval), now
        if self._signs != self._known_signs:
            self._known_signs, self._waited, self._rang_at = self._signs, 0.0, math.inf
        else:
            self._waited += elapsed
        self._tell(watched)
        others, silent = self._peers()
        steps = [step for step, _ in list(self._steps)]
        reason = self._patience.hang_reason(self._beat, self._waited, steps, silent=silent, others=others)
        if reason is None:
            return
        report = ReportStall(self._waited, reason)
        if math.isinf(self._rang_at):
            self._rang_at = self._waited
            self._alarm.ring(report)
        elif self._waited > self._rang_at + self._patience.min_seconds:
            self._alarm.give_up(report)

    def _tell(self, watched: int) -> None:
        number, latest = self._beat.number + 1, list(self._steps)
        self._beat = replace(
            self._beat,
            number=number,
            step=self._step,
            doing=self._doing(watched),
            step_seconds=median(step for step, _ in latest) if latest else 0.0,
            data_seconds=median(wait for _, wait in latest) if latest else 0.0,
        )
        self._heartbeats.tell(self._beat)
        if self._beat.rank == 0 and number % _TICKS_BETWEEN_FIGURES == 0:
            self._everyone = self._heartbeats.all()

    def _peers(self) -> tuple[Sequence[Heartbeat], Sequence[Heartbeat]]:
        """Return the other ranks that send heartbeats, and the ranks that do not; called only when it is needed."""
        if self._waited < self._patience.min_seconds / 2:
            self._seen.clear()
            return (), ()
        peers = [beat for beat in self._heartbeats.all() if beat.rank != self._beat.rank]
        for beat in peers:
            if self._seen.get(beat.rank, (-1, 0.0))[0] != beat.number:
                self._seen[beat.rank] = beat.number, self._waited
        quiet = 3.5 * self.interval
        silent = [beat for beat in peers if self._waited - self._seen[beat.rank][1] > quiet]
        return [beat for beat in peers if beat not in silent], silent
