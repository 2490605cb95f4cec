"""A thread for each monitor, so that a monitor that is slow, hangs or fails does not hold up training."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

from holdfast.domain.errors import TrainingError
from holdfast.ports.monitor import EventTracker, NoteKind, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.ports.monitor import EndState, Monitor, RunDescription

_MOST_WAITING = 10_000
_FIRST_PAUSE, _LONGEST_PAUSE = 30.0, 600.0  # seconds
_NO_STEP = 1 << 63


class _Call(NamedTuple):
    """A call that waits for the thread: its number in the order of all calls, and the step that it records, if any."""

    number: int
    make: Callable[[], object]
    may_drop: bool
    step: int


class MetricsHistory(Protocol):
    """The run's own record of its metrics, and the step up to which each tracker has all of them."""

    def between(self, after: int, last: int) -> Iterable[tuple[int, Mapping[str, float]]]:
        """Yield the metrics of the steps greater than ``after``, up to ``last``, in the order of their recording."""
        ...

    def sent(self, tracker: str) -> int:
        """Return the step up to which ``tracker`` has all metrics, 0 if it has none."""
        ...

    def note_sent(self, tracker: str, step: int) -> None:
        """Store that ``tracker`` has all metrics up to ``step``."""
        ...


@final
class MonitorThread:
    """Calls one monitor in a thread of its own, in order; ``history`` knows it as ``key``, by default by its name.

    If more than ``most_waiting`` metrics and notes wait, the oldest are dropped, which is an error once until the
    monitor has caught up. A tracker gets dropped metrics, and metrics whose call failed, again at the next ``flush``,
    from ``history``. A flush that waits is replaced by a later one. After a flush that failed, the next one is tried
    after a pause, which doubles each time: to open a sink that is away may take seconds of processor time. Errors of
    calls are kept for ``take_error``, only the first until the monitor works again: a tracker works when a flush
    succeeds, another monitor when any call does.
    """

    def __init__(
        self,
        name: str,
        monitor: Monitor,
        history: MetricsHistory | None = None,
        *,
        key: str | None = None,
        most_waiting: int = _MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._key = name if key is None else key
        self.monitor = monitor
        self._tracker = monitor if isinstance(monitor, Tracker) else None
        self._history = history
        self._most_waiting = most_waiting
        self._clock = clock
        self._pause = _FIRST_PAUSE
        self._not_before = -math.inf
        self._calls: deque[_Call] = deque()
        self._num_droppable = 0
        self._num_calls = 0
        self._waiting_flush: _Call | None = None
        self._last_dropped = -1  # the number of a call; those that are dropped have ascending numbers
        self._last_repair = -1  # the number of the last call that sent all earlier metrics
        self._current = -1  # the number of the call that is made
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_late = False  # after a wait in vain
        self._is_dropping = False
        self._is_complete = True  # but for metrics that were dropped
        self._lowest_lost = _NO_STEP  # the lowest step whose metrics were dropped or lost
        self._is_failing = False
        self._is_ending = False
        self._sent: int | None = None  # the step that ``history`` knows
        self._run: RunDescription | None = None
        self._has_begun = False
        self._error: TrainingError | None = None

    @property
    def is_tracker(self) -> bool:
        """Return whether the monitor is a ``Tracker``."""
        return self._tracker is not None

    def begin(self, run: RunDescription) -> None:
        """Let a tracker open its sink for ``run``."""
        self._run = run
        if self._tracker is not None:
            self._put(self._begin)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Let the monitor record the metrics of ``step``."""
        self._put(lambda: self._record(step, metrics), may_drop=True, step=step)

    def note(self, step: int, kind: NoteKind, text: str) -> None:
        """Let a tracker record a text."""
        if (tracker := self._tracker) is not None:
            self._put(lambda: self._has_begun and tracker.note(step, kind, text), may_drop=True)

    def event(self, step: int, name: str, text: str) -> None:
        """Let a tracker record an event of the kind ``name``."""
        if self._tracker is not None:
            self._put(lambda: self._event(step, name, text), may_drop=True)

    def rewind(self, step: int) -> None:
        """Let the monitor remove the metrics after ``step``; a tracker also gets those that it lacks up to ``step``."""
        if self._tracker is None:
            self._put(lambda: self.monitor.rewind(step))
        else:
            self._put(lambda: self._rewind(step))

    def flush(self, step: int, *, is_last: bool = False) -> None:
        """Let a tracker make all metrics up to ``step`` durable, after those that it lacks were sent again.

        The last flush of a run, and each one after it, is tried in any case.
        """
        if self._tracker is not None:
            self._is_ending = self._is_ending or is_last
            self._put(lambda: self._flush_in_time(step), is_flush=True)

    def finish(self, state: EndState) -> None:
        """Let a tracker record how the run ends."""
        if (tracker := self._tracker) is not None:
            self._put(lambda: self._has_begun and tracker.finish(state))

    def settle(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until the calls so far were made; return whether they were.

        A monitor that once took too long is not waited for until it has caught up.
        """
        return self.mark()(seconds)

    def mark(self) -> Callable[[float], bool]:
        """Return a function that does what ``settle`` does, for the calls before this one."""
        if self._thread is None or (self._is_late and self._calls):
            return lambda _: True
        made = threading.Event()
        self._put(made.set)

        def wait(seconds: float) -> bool:
            """Wait up to ``seconds``."""
            self._is_late = not made.wait(seconds)
            return not self._is_late

        return wait

    def take_error(self) -> TrainingError | None:
        """Return the first error since the last call of this method, None without one."""
        with self._changed:
            error, self._error = self._error, None
        return error

    def close(self, seconds: float) -> bool:
        """Close the monitor after the last call; return False, and abandon it, if that takes more than ``seconds``.

        A monitor that was waited for in vain is abandoned at once. An error is kept for ``take_error``. A second call
        does nothing.
        """
        return self.end()(seconds)

    def end(self) -> Callable[[float], bool]:
        """Close the monitor after the last call; return a function that waits as ``close`` does."""
        if self._is_closed:
            return lambda _: True
        self._put(self.monitor.close)
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        thread = self._thread
        assert thread is not None

        def wait(seconds: float) -> bool:
            """Wait up to ``seconds``, not at all for a monitor that was waited for in vain."""
            thread.join(0.0 if self._is_late else seconds)
            return not thread.is_alive()

        return wait

    def _put(
        self, make: Callable[[], object], *, may_drop: bool = False, is_flush: bool = False, step: int = _NO_STEP
    ) -> None:
        with self._changed:
            if self._is_closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"monitor {self.name}", daemon=True)
                self._thread.start()
            if may_drop and self._num_droppable >= self._most_waiting:
                self._drop_oldest()
            call = _Call(self._num_calls, make, may_drop, step)
            if is_flush:
                if self._waiting_flush is not None:
                    self._calls.remove(self._waiting_flush)
                self._waiting_flush = call
            self._num_calls += 1
            self._calls.append(call)
            self._num_droppable += may_drop
            self._changed.notify()

    def _drop_oldest(self) -> None:
        at = next(at for at, call in enumerate(self._calls) if call.may_drop)
        self._last_dropped, self._lowest_lost = self._calls[at].number, min(self._lowest_lost, self._calls[at].step)
        del self._calls[at]
        self._num_droppable -= 1
        if not self._is_dropping:
            self._is_dropping = True
            again = ", and are sent again later" if self._history is not None and self.is_tracker else ""
            msg = f"the monitor {self.name} is {self._most_waiting:,} records behind: the oldest are dropped{again}"
            self._keep(TrainingError(msg))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._calls:
                    self._is_late = self._is_dropping = False
                    if self._is_closed:
                        return
                    self._changed.wait()
                call = self._calls.popleft()
                self._num_droppable -= call.may_drop
                self._current = call.number
                if call is self._waiting_flush:
                    self._waiting_flush = None
            try:
                call.make()
                self._is_failing = self._is_failing and self.is_tracker
            except (Exception, SystemExit) as error:  # noqa: BLE001  kept for the loop's thread; later calls are made
                if not self._is_failing:
                    self._keep(self._as_training_error(error))
                self._is_failing = True
            del call  # it may hold large objects, and the next one may come much later

    def _keep(self, error: TrainingError) -> None:
        with self._changed:
            self._error = self._error or error

    def _as_training_error(self, error: Exception | SystemExit) -> TrainingError:
        if isinstance(error, TrainingError):
            return error
        try:
            cause = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001  an error of another package may fail to describe itself
            cause = type(error).__name__
        wrapped = TrainingError(f"the monitor {self.name} failed: {cause}")
        wrapped.__cause__ = error
        return wrapped

    def _begin(self) -> None:
        assert self._tracker is not None
        assert self._run is not None
        self._tracker.begin(self._run)
        self._has_begun = True

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            self._note_unsent(step)
            if self._tracker is not None and not self._has_begun:
                self._lose(step)
                return
            self.monitor.record(step, metrics)
        except (Exception, SystemExit):
            self._lose(step)
            raise

    def _note_unsent(self, step: int) -> None:
        """Let ``history`` know that metrics from ``step`` on are to come: after a roll-back, or results of suites."""
        if self._history is None or self._tracker is None:
            return
        if self._sent is None:
            self._sent = self._history.sent(self._key)
        if self._sent and step <= self._sent:
            before = max(0, step - 1)
            self._history.note_sent(self._key, before)
            self._sent = before

    def _lose(self, step: int) -> None:
        """Note that the monitor lacks metrics of ``step``."""
        with self._changed:
            self._is_complete, self._lowest_lost = False, min(self._lowest_lost, step)

    def _event(self, step: int, name: str, text: str) -> None:
        assert self._tracker is not None
        if not self._has_begun:
            return
        if isinstance(self._tracker, EventTracker):
            self._tracker.event(step, name, text)
        else:
            self._tracker.note(step, NoteKind.EVENT, text)

    def _flush_in_time(self, step: int) -> None:
        if self._clock() < self._not_before and not self._is_ending:
            return
        try:
            self._flush(step)
        except (Exception, SystemExit):
            self._not_before = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            raise
        self._not_before, self._pause = -math.inf, _FIRST_PAUSE

    def _flush(self, step: int) -> None:
        assert self._tracker is not None
        if not self._has_begun:
            self._begin()
            self._is_complete = False
        if not self._is_complete or self._last_dropped > self._last_repair:
            self._send_again(step)
        self._tracker.flush()
        self._is_failing = False
        if self._history is not None:
            self._history.note_sent(self._key, step)
            self._sent = step

    def _rewind(self, step: int) -> None:
        self._note_unsent(step + 1)  # later steps are taken again
        if not self._has_begun:
            return
        if step:
            self._send_again(step)
        else:  # step 0 is recorded anew, perhaps in ``history`` already
            self.monitor.rewind(0)
            self._note_repair()

    def _send_again(self, step: int) -> None:
        """Remove the metrics after the last step that is known to be complete, and send those up to ``step``."""
        known = step
        if self._history is not None:
            # results of suites belong to earlier steps than the metrics around them
            known = max(0, min(step, self._history.sent(self._key), self._lowest_lost - 1))
        self._is_complete = False  # unless all of it succeeds
        held = self.monitor.rewind(known)
        if self._history is not None:
            known = known if held is None else min(known, held)
            for number, metrics in self._history.between(known, step):
                self.monitor.record(number, metrics)
        self._note_repair()

    def _note_repair(self) -> None:
        """Note that the monitor has all metrics that were passed on before the present call."""
        with self._changed:
            self._is_complete, self._last_repair = True, self._current
            if self._last_dropped <= self._current:
                self._lowest_lost = _NO_STEP


def settle_all(threads: Iterable[MonitorThread], seconds: float) -> list[MonitorThread]:
    """Wait as ``settle`` does, for each monitor as ``close_all`` does; return those that took longer."""
    return _late([(thread, thread.mark()) for thread in threads], seconds)


def close_all(threads: Iterable[MonitorThread], seconds: float) -> list[str]:
    """Close all monitors, side by side; return a sentence for each that failed or took too long.

    Each has ``seconds`` from the end of the last one that ended in time: one that hangs costs no other its time, and
    many that share a busy machine may take longer together.
    """
    problems, waits = [], [(thread, thread.end()) for thread in threads]
    late = _late(waits, seconds)
    for thread, _ in waits:
        if (error := thread.take_error()) is not None:
            problems.append(str(error))
        elif thread in late:
            problems.append(_left_behind(thread, seconds))
    return problems


def _late(waits: Iterable[tuple[MonitorThread, Callable[[float], bool]]], seconds: float) -> list[MonitorThread]:
    late, deadline = [], time.monotonic() + seconds
    for thread, wait in waits:
        if wait(max(0.0, deadline - time.monotonic())):
            deadline = time.monotonic() + seconds
        else:
            late.append(thread)
    return late


def _left_behind(thread: MonitorThread, seconds: float) -> str:
    later = "; the next start of this run sends them again" if thread.is_tracker else ""
    return f"the monitor {thread.name} did not take its last metrics within {seconds:.0f} s{later}"
