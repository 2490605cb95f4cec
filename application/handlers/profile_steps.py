"""Profiles some of a run's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.events import Event, RunStarted, StepCompleted


class Profiler(Protocol):
    """Watches what this process does from ``start``, in front of a training step, to ``stop``, behind one."""

    def start(self, step: int) -> None:
        """Begin to watch, as ``step`` begins."""

    def step(self) -> None:
        """Mark that a step has ended and the next one begins."""

    def stop(self, name: str) -> str:
        """Write what was seen under ``name``; return in words where it is."""


@final
class ProfileSteps:
    """Profiles the steps from ``first`` on, up to but not with ``end``, and says where the result is.

    What the loop does between these steps, such as an evaluation, is seen as well. A run that begins or ends between
    them profiles those that it has, and one that begins behind them says so. An error of the profiler ends the profile.
    """

    def __init__(self, profiler: Profiler, first: int, end: int, log_line: Callable[[str], object]) -> None:
        self._profiler = profiler
        self._first = first
        self._end = end
        self._log_line = log_line
        self._is_on = False
        self._began = self._last = 0

    def on_start(self, event: RunStarted) -> None:
        """Begin where the first steps are wanted, or say that it is too late."""
        following = event.progress.step + 1
        if following >= self._end:
            self._log_line(f"profile.steps ends before step {following}, where this run begins: nothing is profiled")
        elif following >= self._first:
            self._begin(following)

    def on_step(self, event: StepCompleted) -> None:
        """Begin in front of the first step, end behind the last."""
        following = event.progress.step + 1
        if self._is_on:
            self._last = event.progress.step
            if following >= self._end:
                self.on_end(event)
            else:
                self._mark()
        elif following == self._first:
            self._begin(following)

    def on_end(self, event: Event) -> None:
        """Write what there is."""
        del event
        if self._is_on:
            self._write()

    def _begin(self, step: int) -> None:
        self._profiler.start(step)
        self._is_on, self._began, self._last = True, step, step

    def _write(self) -> None:
        self._is_on = False
        where = self._profiler.stop(f"steps-{self._began}-{self._last}")
        self._log_line(f"profile of steps {self._began} to {self._last} in {where}")

    def _mark(self) -> None:
        try:
            self._profiler.step()
        except Exception:
            self._write()
            raise
