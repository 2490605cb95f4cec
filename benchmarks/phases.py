"""A run in which a part works in every other phase of steps, so that its cost is seen in one process."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, final

from benchmarks.report import interval_of_median
from holdfast.bootstrap.run import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import StepCompleted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WARM_UP = 4  # phases


@final
class PhasedRun:
    """A run of ``number`` phases of ``length`` steps each; ``is_on`` says whether the part works in the present one."""

    def __init__(self, overrides: Sequence[str], length: int, number: int) -> None:
        steps = f"run.budget.steps={number * length}"
        silent = ["state_store.every=0", "evaluation.every=0", "evaluation.at_start=false"]
        self._settings = load_settings([], [*overrides, *silent, steps], {}).settings
        self._length, self._number = length, number
        self._seconds: list[list[float]] = [[]]

    @property
    def is_on(self) -> bool:
        """Return whether the part works in this phase: in the second, the fourth, and so on."""
        return len(self._seconds) % 2 == 0

    def run(self, at_step: Callable[[StepCompleted, int, int], object] = lambda *_: None) -> Sequence[float]:
        """Train; return the seconds of each phase.

        ``at_step`` is called behind each step with the number of the phase and the number of its steps so far. It does
        not count, unless it leaves work for other threads.
        """

        def step_ends(event: StepCompleted) -> None:
            self._seconds[-1].append(time.perf_counter() - began[0])
            at_step(event, len(self._seconds), len(self._seconds[-1]))
            if len(self._seconds[-1]) == self._length:
                self._seconds.append([])
            began[0] = time.perf_counter()

        run = build(self._settings, report=lambda _: None)
        run.subscribe(StepCompleted, step_ends)
        began = [time.perf_counter()]
        run.run()
        return [sum(phase) for phase in self._seconds[: self._number]]


def num_phases(pairs: int) -> int:
    """Return the number of phases of which ``pairs`` have one without the part before and after them."""
    return WARM_UP + 2 * pairs + 1


def cost(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return the median time of a phase with the part to the mean of those around it, and its 95 % interval."""
    seconds = seconds[WARM_UP:]
    around = [(before + after) / 2 for before, after in pairwise(seconds[::2])]
    return interval_of_median([on / off for on, off in zip(seconds[1::2], around, strict=True)])
