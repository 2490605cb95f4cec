"""The names under which Prometheus knows the metrics of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
