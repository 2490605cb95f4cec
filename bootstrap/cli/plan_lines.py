"""The plan of a run as lines for a person."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.process.text_table import aligned
from holdfast.bootstrap.run_reading.formatting import duration
from holdfast.bootstrap.stages.prepare.supervision_proof import has_colors, row_lines
from holdfast.configs.error_messages import one_line
from holdfast.domain.sizes import counted, shown_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_UNKNOWN = "not known without a trial"
_LONGEST_ROW = 2000  # characters


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``plan``, one group after the other, and its sample at the end."""
    groups = {"model": _model, "step": _step, "budget": _budget, "data": _data, "memory": _memory, "disk": _disk}
    groups |= {"time": _time, "cost": _cost, "note": _notes}
    rows = []
    for name, lines in groups.items():
        for number, text in enumerate(lines(plan)):
            rows.append(("" if number else name, text))
    yield aligned(rows)
    if plan["sample"] is not None:
        yield ""
        yield from row_lines(plan["sample"], is_colored=has_colors(sys.stdout), longest=_LONGEST_ROW)


def _model(plan: Mapping[str, Any]) -> Iterator[str]:
    model = plan["model"]
    number, trained = model["parameters"], model["trained_parameters"]
    text = "the number of parameters is not known without a trial" if number is None else f"{number:,} parameters"
    if trained is not None and trained != number:
        text += f", of which {trained:,} are trained"
    words = [word for word in (model["device"], model["precision"]) if word]
    yield ", ".join([text, *words, counted(plan["memory"]["ranks"], "rank")])


def _step(plan: Mapping[str, Any]) -> Iterator[str]:
    step = plan["step"]
    rows = step["micro_batch"]
    size = "chosen when the run starts" if rows is None else f"of {counted(rows, 'row')}"
    yield f"{step['rows']:,} x {step['length']:,} = {step['rows'] * step['length']:,} tokens, micro-batches {size}"


def _budget(plan: Mapping[str, Any]) -> Iterator[str]:
    data = plan["data"]
    text = f"{counted(data['steps'], 'step')} = {data['tokens']:,} tokens"
    if data["epochs"] is not None:
        yield f"{text} = {data['epochs']:,.3g} epochs of {data['tokens_there']:,} tokens"
    elif data["mode"] == "stream":
        yield f"{text}; the data are streamed, so their number of tokens is not known, nor whether they last that long"
    else:
        yield f"{text}; the epochs are {_UNKNOWN}"


def _data(plan: Mapping[str, Any]) -> Iterator[str]:
    data = plan["data"]
    yield "tokens are read from the token cache" if data["mode"] == "cache" else "text is tokenized while it is read"
    for stage in data["shares"] or ():
        shares = ", ".join(f"{one_line(name)} {share:.1%}" for name, share in stage["sources"].items())
        yield f"from row {stage['from_row']:,} on: {shares}"


def _memory(plan: Mapping[str, Any]) -> Iterator[str]:
    memory = plan["memory"]
    peaks = memory["peak_bytes"]
    for rank, limit in enumerate(memory["limit_bytes"]):
        if peaks is None:
            yield f"rank {rank}: {shown_size(limit)} are there; the peak is {_UNKNOWN}"
        else:
            share = f"{peaks[rank] / max(limit, 1):.0%} of {shown_size(limit)}"
            yield f"rank {rank}: a measured peak of {shown_size(peaks[rank])}, which is {share}"
    parts = memory["formula_bytes"]
    if parts is None:
        yield "by part: the formula does not know this model"
        return
    names = ("weights", "gradients", "optimizer", "buffers", "activations", "loss")
    yield "by part, by the formula: " + ", ".join(f"{name} {shown_size(parts[name])}" for name in names)
    total = f"at most {shown_size(parts['peak'])} of them at once on each rank"
    yield total + (f", and {shown_size(parts['host'])} in host memory" if parts["host"] else "")


def _disk(plan: Mapping[str, Any]) -> Iterator[str]:
    disk = plan["disk"]
    if disk["token_bytes"] is not None:
        yield f"tokens: about {shown_size(disk['token_bytes'])} in the token cache"
    kept, size = disk["checkpoints_kept"], disk["checkpoint_bytes"]
    if size is None:
        yield f"{counted(kept, 'checkpoint')} at the end; their size is {_UNKNOWN}"
    else:
        yield f"{counted(kept, 'checkpoint')} of {shown_size(size)} = {shown_size(kept * size)} at the end"
        yield f"{shown_size(disk['peak_bytes'])} while one more is written; {shown_size(disk['free_bytes'])} are free"
        yield f"metrics: about {shown_size(disk['metrics_bytes'])}"


def _time(plan: Mapping[str, Any]) -> Iterator[str]:
    time = plan["time"]
    if time is None:
        yield _UNKNOWN
        return
    parts = time["parts"]
    yield f"{duration(time['seconds'])}, by a trial of {counted(time['trial_steps'], 'step')}"
    yield f"start {duration(parts['start'])}, end {duration(parts['end'])}"
    yield f"steps {duration(parts['steps'])}, {time['a_step']:.3g} s each"
    yield f"evaluations {duration(parts['evaluations'])}, waiting for checkpoints {duration(parts['saves'])}"


def _cost(plan: Mapping[str, Any]) -> Iterator[str]:
    if plan["cost"] is not None:
        yield f"{plan['cost']['total']:,.2f}, at {plan['cost']['price_per_hour']:g} an hour for all machines together"
    elif plan["time"] is not None:
        yield "give --price-per-hour, the price of all machines together"
    else:
        yield _UNKNOWN


def _notes(plan: Mapping[str, Any]) -> Iterator[str]:
    yield from plan["notes"]
