"""A study in memory, with parameters at random and the median rule."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import median
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.domain.tuning.trial import Trial, TrialState, seen_by
from holdfast.ports.study import Study

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.tuning.search_space import SearchSpace, Value
    from holdfast.domain.tuning.trial import TrialEnd


@final
class MemoryStudy(Study):
    """A study of ``space`` for tests and for programs that embed this package; ``parallel`` trials train at once.

    ``seed`` decides the values that are tried.
    A trial is pruned at a step at which its measurement is above the median of ``startup`` earlier trials or more,
    or below it if the study ``maximizes``.
    """

    def __init__(
        self, space: SearchSpace, seed: int = 0, parallel: int = 1, *, startup: int = 2, maximizes: bool = False
    ) -> None:
        self._space = space
        self._seed = seed
        self._parallel = parallel
        self._startup = startup
        self._sign = -1.0 if maximizes else 1.0
        self._trials: list[Trial] = []

    @property
    @override
    def parallel(self) -> int:
        """Return the number of trials that may train at once."""
        return self._parallel

    @override
    def trials(self) -> Sequence[Trial]:
        """Return all trials."""
        return tuple(self._trials)

    @override
    def add(self, number: int) -> None:
        """Add a trial."""
        assert number <= len(self._trials), "the next trial"
        if number == len(self._trials):
            self._trials.append(Trial(number))

    @override
    def suggest(self, number: int) -> Mapping[str, Value]:
        """Return the parameters of a trial."""
        parameters = self._trials[number].parameters
        if parameters is None:
            parameters = self._space.draw(Random(f"{self._seed}:{number}"))  # noqa: S311  no secret
            self._trials[number] = replace(self._trials[number], parameters=parameters)
        return parameters

    @override
    def report(self, number: int, step: int, value: float) -> bool:
        """Record a measurement; return whether it is worse than the median of earlier trials at this step."""
        trial = self._trials[number]
        if step not in trial.measurements:
            trial = replace(trial, measurements={**trial.measurements, step: value})
            self._trials[number] = trial
        measured = trial.measurements[step]
        seen = seen_by(number, self._trials, self._parallel)
        others = [other.measurements[step] for other in seen if step in other.measurements]
        finite = [value for value in others if math.isfinite(value)]
        is_worse = len(finite) >= self._startup and self._sign * (measured - median(finite)) > 0
        return math.isnan(measured) or is_worse

    @override
    def finish(self, number: int, end: TrialEnd) -> None:
        """Record the end of a trial."""
        if self._trials[number].state is TrialState.RUNNING:
            self._trials[number] = replace(
                self._trials[number], state=end.state, value=end.value, tokens=end.tokens, note=end.note
            )

    @override
    def close(self) -> None:
        """Do nothing."""
