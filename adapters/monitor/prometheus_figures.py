"""The counters and gauges of a run as Prometheus sees them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from holdfast.adapters.monitor.prometheus_names import (
    COUNTERS,
    EVENTS,
    EVENTS_TOTAL,
    GAUGES,
    LAST_STEP,
    OTHER_HELP,
    PREFIX,
    RANKS,
    START,
    STATE,
    STEP,
    STEPS_TOTAL,
    CounterGrowth,
    ExportedCounter,
    ExportedGauge,
    labelled_gauge,
    other_gauge,
)
from holdfast.domain.training.metric_catalog import meaning_of_metric
from holdfast.ports.monitor import EndState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STATES = ("running", *EndState)


@dataclass(slots=True)
class ExportedFamily:
    """A metric of Prometheus: its samples are values, each with the labels that it has of its own."""

    name: str
    help: str
    is_counter: bool
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)


@final
class ExportedFigures:
    """Turns the records of a run into counters and gauges; its methods may be called from any thread.

    Gauges show the last value of each metric, except those of steps that were rewound. Counters start at 0 with the
    process and never fall. A metric of ``CounterGrowth.RUN`` adds the difference between two records; the first record
    of a process that continues a run adds nothing, as the total before it is unknown.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, tuple[int, float]] = {}
        self._totals = dict.fromkeys(COUNTERS, 0.0)
        self._before: dict[str, float] = {}
        self._events = dict.fromkeys(EVENTS, 0)
        self._num_steps = 0
        self._step: int | None = None
        self._last_step = self._began = 0.0
        self._num_ranks = 1
        self._state: str | None = None

    def begin(self, num_ranks: int, now: float) -> None:
        """Begin a run of ``num_ranks`` processes at the Unix time ``now``."""
        with self._lock:
            self._num_ranks, self._state = num_ranks, "running"
            self._began = self._last_step = now

    def record(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        """Record the metrics of ``step``, at the Unix time ``now``."""
        with self._lock:
            if self._step is None or step > self._step:  # results of suites are those of earlier steps
                self._num_steps += 1
                self._step, self._last_step = step, now
            for name, value in metrics.items():
                self._values[name] = step, float(value)
                if name in COUNTERS:
                    self._count(name, COUNTERS[name].growth, float(value))

    def rewind(self, step: int) -> None:
        """Remove the values of later steps; 0 begins the totals of the run at 0."""
        with self._lock:
            self._values = {name: found for name, found in self._values.items() if step > 0 and found[0] <= step}
            if step == 0:
                self._before |= {name: 0.0 for name, counter in COUNTERS.items() if counter.growth is CounterGrowth.RUN}
            self._step = step

    def event(self, name: str) -> None:
        """Count an event of the kind ``name``."""
        with self._lock:
            self._events[name] = self._events.get(name, 0) + 1

    def finish(self, state: EndState) -> None:
        """Note the end of this start of the run."""
        with self._lock:
            self._state = state.value

    def families(self) -> Sequence[ExportedFamily]:
        """Return all counters and gauges, nothing before ``begin``."""
        with self._lock:
            if self._state is None:
                return []
            found = [
                _one(START, self._began),
                _one(LAST_STEP, self._last_step),
                _one(RANKS, self._num_ranks),
                _family(STATE, [({"state": state}, float(state == self._state)) for state in _STATES]),
                _one(STEPS_TOTAL, self._num_steps),
                _family(EVENTS_TOTAL, [({"event": name}, count) for name, count in self._events.items()]),
                *(_one(COUNTERS[name], total) for name, total in self._totals.items()),
            ]
            if self._step is not None:
                found.append(_one(STEP, self._step))
            return self._with_gauges(found)

    def _with_gauges(self, own: Sequence[ExportedFamily]) -> list[ExportedFamily]:
        found = {family.name: family for family in own}
        for metric, (_, value) in self._values.items():
            if metric in COUNTERS and metric not in GAUGES:
                continue
            gauge, labels = _gauge_of(metric)
            family = found.setdefault(PREFIX + gauge.name, _family(gauge, []))
            family.samples.append((labels, value))
        return list(found.values())

    def _count(self, name: str, growth: CounterGrowth, value: float) -> None:
        if not 0 <= value < float("inf"):
            return
        if growth is CounterGrowth.STEP:
            self._totals[name] += value
            return
        before = self._before.get(name, value if growth is CounterGrowth.RUN else 0.0)
        self._before[name] = value
        if value >= before:
            self._totals[name] += value - before
        elif growth is CounterGrowth.PROCESS:  # it counts from 0 again
            self._totals[name] += value


def _gauge_of(metric: str) -> tuple[ExportedGauge, Mapping[str, str]]:
    """Return the gauge of ``metric`` and its own labels."""
    if metric in GAUGES:
        return GAUGES[metric], {}
    if (labelled := labelled_gauge(metric)) is not None:
        return labelled
    name, is_changed = other_gauge(metric)
    if is_changed:
        return ExportedGauge(name, OTHER_HELP), {"metric": metric}
    meaning = meaning_of_metric(metric)
    return ExportedGauge(name, OTHER_HELP if meaning is None else _sentence(meaning)), {}


def _sentence(phrase: str) -> str:
    plain = phrase.replace("`", "")
    return f"{plain[0].upper()}{plain[1:]}."


def _one(exported: ExportedCounter | ExportedGauge, value: float) -> ExportedFamily:
    return _family(exported, [({}, value)])


def _family(
    exported: ExportedCounter | ExportedGauge, samples: list[tuple[Mapping[str, str], float]]
) -> ExportedFamily:
    return ExportedFamily(PREFIX + exported.name, exported.help, isinstance(exported, ExportedCounter), samples)
