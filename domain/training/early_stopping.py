"""The rule of early stopping, and its state."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import counted
from holdfast.domain.training.metric_catalog import is_higher_better

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Patience:
    """The best value of ``metric`` so far, and the number of evaluations in a row without an improvement.

    ``step`` is the step of the last evaluation. ``best`` is None until a value is finite, ``best_step`` its step.
    ``improved`` is the value of the last improvement, from which the next one is measured. ``limit`` is the number of
    evaluations without an improvement that stopped the run at that time, ``min_delta`` the change that was too small.
    """

    metric: str
    step: int
    limit: int
    min_delta: float = 0.0
    best: float | None = None
    best_step: int = 0
    improved: float | None = None
    num_without: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Return whether the run was stopped early at ``step``."""
        return self.num_without >= self.limit

    def __str__(self) -> str:
        number = counted(self.num_without, "evaluation")
        if self.best is None:
            return f"{self.metric} was not finite in {number}"
        change = f"improved by more than {self.min_delta:g}" if self.min_delta else "improved"
        return f"{self.metric} has not {change} in {number}, best {self.best:.4f} at step {self.best_step}"

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the state that ``to_json`` described; raises ``ValueError`` if ``record`` is not valid."""
        state = cls(**{field.name: record[field.name] for field in fields(cls)})
        counts = (state.step, state.limit, state.best_step, state.num_without)
        numbers = [number for number in (state.best, state.improved) if number is not None]
        are_numbers = all(type(number) is float and math.isfinite(number) for number in [*numbers, state.min_delta])
        if not are_numbers or type(state.metric) is not str or any(type(n) is not int or n < 0 for n in counts):
            msg = "early_stopping holds values other than a metric, numbers and counts"
            raise ValueError(msg)
        return state


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stops a run after ``patience`` evaluations in a row without an improvement of ``metric``.

    A value improves if it is lower than the value of the last improvement by more than ``min_delta``, or higher if a
    higher value of the metric is better, so that many small changes add up to one. A value that is not finite never
    improves.
    """

    metric: str
    patience: int
    min_delta: float = 0.0

    def after(self, state: Patience | None, step: int, metrics: Mapping[str, float]) -> Patience:
        """Return the state after an evaluation at ``step`` that measured ``metrics``.

        A second evaluation of one step changes nothing. Another metric begins anew. Raises ``ConfigurationError`` if
        ``metrics`` does not contain the metric.
        """
        if self.metric not in metrics:
            msg = (
                f"recovery.early_stopping.metric is {self.metric}, but an evaluation of this run measures "
                f"{', '.join(metrics)}: choose one of these"
            )
            raise ConfigurationError(msg)
        value = metrics[self.metric]
        is_new = state is None or state.metric != self.metric or state.step != step
        if state is None or state.metric != self.metric:
            state = Patience(self.metric, step, self.patience)
        state = replace(state, step=step, limit=self.patience, min_delta=float(self.min_delta))
        if not is_new:
            return state
        if self._is_better(value, state.best):
            state = replace(state, best=value, best_step=step)
        if self._is_better(value, state.improved, self.min_delta):
            return replace(state, improved=value, num_without=0)
        return replace(state, num_without=state.num_without + 1)

    def stops(self, state: Patience | None) -> bool:
        """Return whether a run with ``state`` is to be stopped."""
        return state is not None and state.metric == self.metric and state.num_without >= self.patience

    def has_measured(self, state: Patience | None, step: int) -> bool:
        """Return whether ``state`` includes an evaluation at ``step``."""
        return state is not None and state.metric == self.metric and state.step == step

    def _is_better(self, value: float, known: float | None, delta: float = 0.0) -> bool:
        if not math.isfinite(value) or known is None:
            return math.isfinite(value)
        return value > known + delta if is_higher_better(self.metric) else value < known - delta
