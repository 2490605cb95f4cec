"""Catalog of the metrics that monitors receive: names, units and meanings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogedMetric:
    """A metric of a record: ``unit`` is empty for a plain number, ``page`` a page of the documentation, if any.

    ``name`` may have placeholders, such as ``<name>``. ``meaning`` is a phrase, with settings in backticks.
    """

    name: str
    unit: str
    meaning: str
    page: str = ""
    is_higher_better: bool = False


_REWARD = "mean of beta times the log-probability that the model adds to that of the reference model,"

STEP_METRICS = (
    CatalogedMetric("tokens", "tokens", "trained on since the run's start"),
    CatalogedMetric(
        "loss",
        "nats per token",
        "mean over the targets of the batch; NaN if a loss mask leaves the batch without any. The console shows it "
        "smoothed over about ten steps while the run trains, and that of the last step in the last lines",
        "fine-tuning.md#loss-masks",
    ),
    CatalogedMetric("lr", "", "learning rate of the step"),
    CatalogedMetric("grad_norm", "", "norm of the gradient before clipping"),
    CatalogedMetric(
        "balancing_loss",
        "",
        "the mean balancing loss of a mixture of experts, without its coefficient; only if the model has experts",
        "models.md#mixture-of-experts",
    ),
    CatalogedMetric(
        "reward_margin",
        "nats",
        "mean of beta x margin over the pairs of the batch; only with `data.task=preference`",
        "fine-tuning.md#figures",
    ),
    CatalogedMetric(
        "reward_accuracy",
        "share",
        "share of the pairs with a margin above 0, ties as half; only with `data.task=preference`",
        "fine-tuning.md#figures",
    ),
    CatalogedMetric(
        "expert_load_max", "", "tokens of the busiest expert of any layer, divided by the mean of its layer"
    ),
    CatalogedMetric(
        "expert_load_min", "", "tokens of the least busy expert of any layer, divided by the mean of its layer"
    ),
    CatalogedMetric("tokens_per_second", "tokens/s", "the step's tokens divided by its time, including waits for data"),
    CatalogedMetric("data_wait_seconds", "s", "time that the loop waited for the batch"),
    CatalogedMetric("batches_ready", "batches", "batches in the prefetch queue after this wait"),
    CatalogedMetric(
        "bytes_read",
        "bytes",
        "stored bytes that this process has read from the data source, including those for tokenizer and hold-out; "
        "prefetched bytes count when they are used; tokens from the cache do not count; 0 for `huggingface` and "
        "`tokens`, which cannot measure it",
    ),
    CatalogedMetric(
        "read_retries",
        "reads",
        "network reads that this process retried; retries inside a library are not counted",
    ),
    CatalogedMetric(
        "rejected",
        "records",
        "records that `data.on_error=skip` has skipped since the run's start: the lines of `rejected.jsonl`",
    ),
    CatalogedMetric(
        "memory_bytes",
        "bytes",
        "the peak so far on the first rank, sampled once a second: GPU memory, or the process's resident size without "
        "a GPU",
    ),
    CatalogedMetric(
        "memory_limit_bytes",
        "bytes",
        "the memory of the first rank's GPU; without a GPU, the memory that machine, control group and resource limits "
        "allow the process",
    ),
    CatalogedMetric(
        "dropped_updates",
        "updates",
        "updates dropped since the run's start because their loss or gradient was NaN or infinite",
    ),
    CatalogedMetric("rollbacks", "returns", "automatic returns to an older checkpoint since the run's start"),
    CatalogedMetric("micro_batch", "rows", "rows that went through the model at once"),
    CatalogedMetric(
        "memory_retries",
        "retries",
        "number of times so far that torch's allocator had to return its unused blocks to get memory on the GPU: an "
        "out-of-memory error is near; 0 without a GPU",
    ),
    CatalogedMetric(
        "compile_seconds", "s", "time of the step that was spent compiling layers; only with `model.compile`"
    ),
    CatalogedMetric(
        "recompiles",
        "compilations",
        "compilations, since this process started, of code that had been compiled before for other shapes; only with "
        "`model.compile`",
    ),
    CatalogedMetric(
        "slowest_rank",
        "rank",
        "with several ranks: the rank whose latest steps took longest, including the wait for data; updated once a "
        "minute",
    ),
    CatalogedMetric("slowest_rank_seconds", "s", "the median time of these steps"),
    CatalogedMetric("median_rank_seconds", "s", "the same median of the rank in the middle"),
    CatalogedMetric(
        "goodput",
        "share",
        "time spent computing steps that count, as a share of the time since the run's first start; updated at most "
        "once a second",
    ),
    CatalogedMetric(
        "mfu",
        "share",
        "share of the peak arithmetic of all ranks' devices that the model needs; only if that peak and the arithmetic "
        "of the architecture are known",
    ),
)
"""The metrics of the record of a step."""

EVALUATION_METRICS = (
    CatalogedMetric("tokens", "tokens", "trained on since the run's start"),
    CatalogedMetric(
        "eval_loss",
        "nats per token",
        "mean over the held-out documents; over all tokens of `evaluation.sets` if none are held out",
    ),
    CatalogedMetric(
        "eval_bits_per_byte",
        "bits per byte",
        "the same loss per byte of the documents in UTF-8, comparable between tokenizers",
        "evaluation.md#bits-per-byte",
    ),
    *(
        CatalogedMetric(
            f"eval_reward_{name}",
            unit,
            f"{meaning}; in place of bits per byte with `data.task=preference`",
            "fine-tuning.md#figures",
            is_higher_better=name in ("margin", "accuracy"),
        )
        for name, unit, meaning in (
            ("margin", "nats", "mean of beta x margin over the pairs"),
            ("accuracy", "share", "share of the pairs with a margin above 0, ties as half"),
            ("chosen", "nats", f"{_REWARD} of the chosen replies"),
            ("rejected", "nats", f"{_REWARD} of the rejected replies"),
        )
    ),
    CatalogedMetric(
        "eval_loss/<name>",
        "nats per token",
        "the loss of the source of this name in a mixture, or of the set of this name in `evaluation.sets`",
    ),
    CatalogedMetric("eval_bits_per_byte/<name>", "bits per byte", "the same loss per byte of the documents in UTF-8"),
)
"""The metrics of the record of an evaluation."""

SUITE_METRICS = (
    CatalogedMetric(
        "suite/<task>/<metric>",
        "as the task defines it",
        "result of a task or group of lm-evaluation-harness",
        "evaluation.md#suites",
    ),
)
"""The metrics of the record of a checkpoint that was evaluated by suites."""

_HIGHER_IS_BETTER = {metric.name for metric in EVALUATION_METRICS if metric.is_higher_better}
_MEANINGS = {metric.name: metric.meaning for metric in (*STEP_METRICS, *EVALUATION_METRICS, *SUITE_METRICS)}


def meaning_of_metric(name: str) -> str | None:
    """Return the meaning of the metric ``name`` as a phrase, None if the catalog does not have it."""
    return _MEANINGS.get(name)


def is_higher_better(name: str) -> bool:
    """Return whether a higher value of the metric ``name`` of an evaluation is the better one.

    ``name`` may be that of a part, such as ``eval_loss/news``. Metrics that are not in the catalog are to fall.
    """
    return name.split("/", 1)[0] in _HIGHER_IS_BETTER
