"""Profiles some of a run's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.events import Event, RunStarted, StepCompleted


class Profiler(Protocol):
    """Profiles this process from ``start``, before a training step, to ``stop``, after one."""

    def start(self, step: int) -> None:
        """Start profiling, as ``step`` begins."""

    def step(self) -> None:
        """Mark that a step has ended and the next one begins."""

    def stop(self, name: str) -> str:
        """Write the profile under ``name``; return its location as text."""


@final
class ProfileSteps:
    """Profiles the steps from ``first`` up to but not including ``end``, and logs where the result is.

    The work between these steps, such as an evaluation, is included. A run that begins or ends between them profiles
    the steps that it takes; a run that begins after them logs that it profiles none. An error of the profiler ends the
    profile.
    """

    def __init__(self, profiler: Profiler, first: int, end: int, log_line: Callable[[str], object]) -> None:
        self._profiler = profiler
        self._first = first
        self._end = end
        self._log_line = log_line
        self._is_on = False
        self._began = self._last = 0

    def on_start(self, event: RunStarted) -> None:
        """Start the profile if the next step is to be profiled, or log that it is too late."""
        following = event.progress.step + 1
        if following >= self._end:
            self._log_line(f"profile.steps ends before step {following}, where this run begins: nothing is profiled")
        elif following >= self._first:
            self._begin(following)

    def on_step(self, event: StepCompleted) -> None:
        """Start before the first step, and end after the last."""
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
        """Write the profile so far."""
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


class Compilations(Protocol):
    """The compilations of this process so far: pieces of code, repeated compilations, and the time spent."""

    @property
    def graphs(self) -> int:
        """Return the number of compilations."""

    @property
    def recompiles(self) -> int:
        """Return the number of compilations of code that had been compiled before, for other shapes or values."""

    @property
    def seconds(self) -> float:
        """Return the seconds spent on compilation."""


@final
class WatchCompilation:
    """Logs the cost of compilation after the first step without any, and warns once if later steps compile again."""

    def __init__(self, compilations: Compilations, log_line: Callable[[str], object]) -> None:
        self._compilations = compilations
        self._log_line = log_line
        self._graphs = self._warm_up = 0
        self._is_warm = self._has_warned = False

    def __call__(self, event: StepCompleted) -> None:
        """Compare the compilations with those up to the step before."""
        compilations, step = self._compilations, event.progress.step
        grew, self._graphs = compilations.graphs > self._graphs, compilations.graphs
        if not self._is_warm and grew:
            self._warm_up += 1
        elif not self._is_warm:
            self._is_warm = True
            self._log_line(
                f"step {step} · warm-up is over: {compilations.graphs} graphs were compiled in "
                f"{compilations.seconds:.1f} s, within {self._warm_up} steps"
            )
        elif grew and not self._has_warned:
            self._has_warned = True
            self._log_line(
                f"step {step} · layers were compiled again ({compilations.recompiles} times so far), as a batch has "
                "another shape: make optimizer.batch_size a multiple of optimizer.micro_batch, or, if the metric "
                "recompiles keeps growing, set model.compile=none"
            )
