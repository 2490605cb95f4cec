"""The evaluations and the end of a trial, as its run folder records them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_reading.growing_file import GrowingRecords
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.run_end import LifecycleState, RunEnd
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.tuning.trial import TrialEnd, TrialState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


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
        found, self._new = self._new, []
        return found

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
