"""Exports metrics to Prometheus."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, final
from weakref import WeakKeyDictionary

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.adapters.shared.sql.database import storable, storable_name
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.training.metric_catalog import meaning_of_metric
from holdfast.ports.monitor import EndState, EventTracker, NoteKind, RunDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from holdfast.adapters.monitor.metrics_server import MetricsServer

_SECONDS_BETWEEN_FILES = 5.0
_OF_HOSTS: WeakKeyDictionary[CollectorRegistry, FigureCollector] = WeakKeyDictionary()
"""The figures that are offered by registries of the programs that embed runs."""


@final
class PrometheusTracker(EventTracker):
    """Offers the figures of the last step by HTTP, to a server of Prometheus, and as a file, to its node_exporter.

    ``port`` is the port of the endpoint at ``host``: 0 is any free port, None is no endpoint. ``textfile`` is replaced
    atomically at a record that comes five seconds after the last one, and at ``flush``, ``finish`` and ``close``; it
    stays after the end of the run, with the state of the run. Prometheus keeps the earlier figures: ``rewind`` removes
    only those that are offered. Texts are not offered, but events are counted by kind. A ``registry`` of the program
    that embeds the run, such as ``prometheus_client.REGISTRY``, offers the figures too, also after ``close``, until
    another tracker is made with it. ``clock`` returns Unix seconds.

    With ``opens_at_once`` the constructor raises ``StateError`` if the port cannot be used, else ``flush`` does, after
    a new attempt. Raises ``ConfigurationError`` without the extra ``prometheus``, and ``StateError`` if the disk
    refuses the file.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        textfile: Path | None = None,
        *,
        registry: CollectorRegistry | None = None,
        opens_at_once: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry as Registry
        except ImportError as error:
            msg = 'the monitor "prometheus" needs another package: pip install "holdfast-lm[prometheus]"'
            raise ConfigurationError(msg) from error
        self._figures = ExportedFigures()
        self._labels: dict[str, str] = {}
        self._registry = Registry(support_collectors_without_names=True)  # else no name can be asked for
        collector = FigureCollector(self._figures, self._labels)
        self._registry.register(collector)
        if registry is not None:
            if (former := _OF_HOSTS.get(registry)) is not None:
                registry.unregister(former)
            registry.register(collector)
            _OF_HOSTS[registry] = collector
        self._host, self._port, self._textfile = host, port, textfile
        self._clock = clock
        self._server: MetricsServer | None = None
        self._written = 0.0
        self._has_begun = self._closed = False
        if opens_at_once:
            self._open()

    @property
    def address(self) -> str | None:
        """Return the URL of the endpoint, None without one."""
        if self._server is None:
            return None
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}/metrics"

    @override
    def begin(self, run: RunDescription) -> None:
        self._labels |= {"run": storable(run.name), "run_id": storable(run.run_id), "rank": "0"}
        self._figures.begin(run.num_ranks, self._clock())
        self._has_begun = True

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self._figures.record(step, metrics, self._clock())
            if self._clock() - self._written >= _SECONDS_BETWEEN_FILES:
                self._write()

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        pass

    @override
    def event(self, step: int, name: str, text: str) -> None:
        self._figures.event(name)

    @override
    def rewind(self, step: int) -> None:
        self._figures.rewind(step)

    @override
    def flush(self) -> None:
        self._write()
        self._open()

    @override
    def finish(self, state: EndState) -> None:
        self._figures.finish(state)
        self._write()

    @override
    def close(self) -> None:
        is_first, self._closed = not self._closed, True
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if is_first:
            self._write()

    def _open(self) -> None:
        """Open the endpoint, if there is to be one; raises ``StateError`` if the port cannot be used."""
        if self._server is not None or self._port is None or self._closed:
            return
        from holdfast.adapters.monitor.metrics_server import MetricsServer

        try:
            self._server = MetricsServer(self._host, self._port, self._registry)
        except OSError as error:
            msg = (
                f"the port {self._port} of {self._host} cannot be used for Prometheus "
                f"({(error.strerror or str(error)).lower()}): end the program that has it, or give the monitor "
                '"prometheus" another port, 0 for any free one'
            )
            raise StateError(msg) from error

    def _write(self) -> None:
        """Replace the text file, if there is one; raises ``StateError`` if the disk refuses it."""
        from prometheus_client import generate_latest

        if self._textfile is None or not self._has_begun:
            return
        self._written = self._clock()
        try:
            replace_file(self._textfile, generate_latest(self._registry), is_durable=False)
        except OSError as error:
            msg = f"the figures for Prometheus cannot be written to {self._textfile}, {explain(error)}"
            raise StateError(msg) from error


class FigureCollector:
    """Converts ``figures`` to the metrics of the library, each sample with ``labels`` too."""

    def __init__(self, figures: ExportedFigures, labels: Mapping[str, str]) -> None:
        self._figures = figures
        self._labels = labels

    def describe(self) -> Sequence[Metric]:
        """Return no names, as they are known with the first figures only."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self._figures.families():
            own = sorted({name for labels, _ in family.samples for name in labels})
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=[*self._labels, *own])
            for labels, value in family.samples:
                metric.add_metric(
                    [*self._labels.values(), *(storable_name(labels.get(name, "")) for name in own)], value
                )
            yield metric


PREFIX = "holdfast_"


class CounterGrowth(Enum):
    """The ways in which the values of a metric add up to a counter.

    ``RUN``: the values are totals of the run, which fall when the run goes back to a checkpoint. ``PROCESS``: they are
    totals of the process. ``STEP``: each is the amount of one step.
    """

    RUN = auto()
    PROCESS = auto()
    STEP = auto()


@dataclass(frozen=True, slots=True)
class ExportedCounter:
    """A counter: it rises while the process lives, also by steps that are taken again, and starts at 0 with it."""

    name: str
    help: str
    growth: CounterGrowth


@dataclass(frozen=True, slots=True)
class ExportedGauge:
    """A gauge: the value of the last record that has the metric."""

    name: str
    help: str


COUNTERS = {
    "tokens": ExportedCounter("tokens_total", "Tokens trained on.", CounterGrowth.RUN),
    "rejected": ExportedCounter("rejected_records_total", "Records skipped because of errors.", CounterGrowth.RUN),
    "dropped_updates": ExportedCounter("dropped_updates_total", "Updates dropped as not finite.", CounterGrowth.RUN),
    "rollbacks": ExportedCounter("rollbacks_total", "Automatic returns to an older checkpoint.", CounterGrowth.RUN),
    "bytes_read": ExportedCounter("read_bytes_total", "Stored bytes read from the data source.", CounterGrowth.PROCESS),
    "read_retries": ExportedCounter("read_retries_total", "Network reads that were retried.", CounterGrowth.PROCESS),
    "memory_retries": ExportedCounter(
        "memory_retries_total",
        "Allocations for which torch had to release unused GPU memory first.",
        CounterGrowth.PROCESS,
    ),
    "recompiles": ExportedCounter("recompiles_total", "Compilations of code for other shapes.", CounterGrowth.PROCESS),
    "data_wait_seconds": ExportedCounter(
        "data_wait_seconds_total", "Time spent waiting for batches.", CounterGrowth.STEP
    ),
    "compile_seconds": ExportedCounter("compile_seconds_total", "Time spent compiling layers.", CounterGrowth.STEP),
}
"""The counters by the metric of the run that they add up."""

GAUGES = {
    "tokens": ExportedGauge("trained_tokens", "Tokens trained on since the start of the run."),
    "loss": ExportedGauge("loss", "Mean loss of the last step in nats per token, or per pair of preferences."),
    "lr": ExportedGauge("learning_rate", "Learning rate of the last step."),
    "grad_norm": ExportedGauge("gradient_norm", "Norm of the gradient of the last step before clipping."),
    "tokens_per_second": ExportedGauge("tokens_per_second", "Tokens per second of the last step."),
    "data_wait_seconds": ExportedGauge("step_data_wait_seconds", "Time that the last step waited for its batch."),
    "compile_seconds": ExportedGauge("step_compile_seconds", "Time that the last step spent compiling layers."),
    "batches_ready": ExportedGauge("ready_batches", "Batches in the prefetch queue."),
    "memory_bytes": ExportedGauge("memory_bytes", "Peak of the used memory so far, of the GPU if there is one."),
    "memory_limit_bytes": ExportedGauge("memory_limit_bytes", "Memory that the process may use."),
    "micro_batch": ExportedGauge("micro_batch_rows", "Rows that go through the model at once."),
    "slowest_rank": ExportedGauge("slowest_rank", "Rank whose latest steps took longest."),
    "slowest_rank_seconds": ExportedGauge("slowest_rank_step_seconds", "Median step time of the slowest rank."),
    "median_rank_seconds": ExportedGauge("median_rank_step_seconds", "Median step time of the rank in the middle."),
    "goodput": ExportedGauge("goodput_ratio", "Share of the time of the run spent computing steps that count."),
    "mfu": ExportedGauge("mfu_ratio", "Share of the peak arithmetic of all devices that is used."),
    "eval_loss": ExportedGauge(
        "eval_loss", "Mean loss of the held-out documents in nats per token, or per pair of preferences."
    ),
    "eval_bits_per_byte": ExportedGauge("eval_bits_per_byte", "Loss of the held-out documents in bits per byte."),
}
"""The gauges by the metric of the run that they show."""

STEPS_TOTAL = ExportedCounter("steps_total", "Steps taken.", CounterGrowth.STEP)
EVENTS_TOTAL = ExportedCounter("events_total", "Events of the run by kind.", CounterGrowth.STEP)
STEP = ExportedGauge("step", "Number of the last step.")
LAST_STEP = ExportedGauge(
    "last_step_timestamp_seconds", "Unix time of the last step, or of the start of the process before its first step."
)
START = ExportedGauge("start_timestamp_seconds", "Unix time of the start of the process.")
STATE = ExportedGauge("run_state", "State of the run: 1 for the present state, 0 for the others.")
RANKS = ExportedGauge("ranks", "Processes that train together.")

EVENTS = (
    *("ArchiveFailed", "BatchSplit", "CheckpointArchived", "CheckpointFailed", "CheckpointMoved", "CheckpointRejected"),
    *("CheckpointSaved", "ContractWeakened", "DataDrifted", "DataStalled", "HandlerFailed", "MemoryExhausted"),
    *("ResourcesAdjusted", "RollBackSkipped", "RolledBack", "RunFailed", "RunStalled", "StopRequested"),
    "UpdateDropped",
)
"""The kinds of events whose counters exist from the start, so that a first event is an increase."""

LABELLED = {
    "eval_loss": (ExportedGauge("eval_set_loss", "Loss of a set of held-out documents in nats per token."), ("set",)),
    "eval_bits_per_byte": (
        ExportedGauge("eval_set_bits_per_byte", "Loss of a set of held-out documents in bits per byte."),
        ("set",),
    ),
    "suite": (ExportedGauge("suite_result", "Result of a task of an evaluation suite."), ("task", "result")),
}
"""The gauges of metrics with names such as ``eval_loss/books``, and the labels for the parts after the first slash."""

OTHER_HELP = "A figure of the run under its own name."
"""The help of gauges that neither ``GAUGES`` nor the catalog of metrics has."""

_OWN_GAUGES = {gauge.name for gauge, _ in LABELLED.values()} | {
    gauge.name for gauge in (*GAUGES.values(), STEP, LAST_STEP, START, STATE, RANKS)
}
_COUNTED = {counter.name.removesuffix("_total") for counter in (*COUNTERS.values(), STEPS_TOTAL, EVENTS_TOTAL)}
_SUFFIXES = ("_total", "_created", "_bucket", "_count", "_sum", "_gcount", "_gsum", "_info")  # of other types


def labelled_gauge(metric: str) -> tuple[ExportedGauge, Mapping[str, str]] | None:
    """Return the gauge of a metric such as ``eval_loss/books`` with its labels, None for other metrics."""
    kind, _, rest = metric.partition("/")
    if kind not in LABELLED or not rest:
        return None
    gauge, labels = LABELLED[kind]
    parts = rest.rsplit("/", len(labels) - 1) if len(labels) > 1 else [rest]
    return (gauge, dict(zip(labels, parts, strict=True))) if len(parts) == len(labels) else None


def other_gauge(metric: str) -> tuple[str, bool]:
    """Return the name of the gauge of a metric that is not in the tables, without prefix, and whether it differs.

    Several metrics may have gauges of the same name: a label tells them apart if the names differ.
    """
    name = re.sub(r"[^a-zA-Z0-9_]", "_", metric)
    if not name or name in _COUNTED or name.endswith(_SUFFIXES):
        name = f"{name}_value" if name else "unnamed"
    return name, name != metric or name in _OWN_GAUGES


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
            self._values = {name: value for name, value in self._values.items() if step > 0 and value[0] <= step}
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
        families = {family.name: family for family in own}
        for metric, (_, value) in self._values.items():
            if metric in COUNTERS and metric not in GAUGES:
                continue
            gauge, labels = _gauge_of(metric)
            family = families.setdefault(PREFIX + gauge.name, _family(gauge, []))
            family.samples.append((labels, value))
        return list(families.values())

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
