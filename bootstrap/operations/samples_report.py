"""The report of `samples`: the documents in a step, the steps with a document, and the documents behind a spike."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.files.json_lines import without_non_finite
from holdfast.bootstrap.process.text_table import table
from holdfast.bootstrap.run_reading.formatting import number
from holdfast.configs.error_messages import one_line
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.data.batch import NO_POSITION
from holdfast.domain.data.exclusion import shown_id
from holdfast.domain.errors import StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.traced_run import TracedRun
    from holdfast.domain.data.batch import Spans

_SHORT = 200
_AROUND = 3  # steps before and after a spike whose losses are shown
_USUAL = 8  # steps whose median a loss is compared with
_LONGEST_NAME = 60
_DOCUMENT_COLUMNS = ("row", "source", "unit", "position", "epoch", "first token", "tokens", "document")
_STEP_COLUMNS = ("step", "row", "source", "unit", "position", "epoch", "first token", "tokens", "loss")


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a report: with the text of each piece, in full (``is_full``) or shortened, and as JSON or a table."""

    has_text: bool = False
    is_full: bool = False
    as_json: bool = False


def documents_of_step(run: TracedRun, step: int, form: Form) -> str:
    """Return the report on the documents in ``step``; raises ``ConfigurationError`` if the run has not taken it."""
    run.check_step(step)
    report = _step(run, step, form)
    if form.as_json:
        return _as_json(run, {"steps": [report]})
    return "\n".join([*_step_lines(report, form), *_note_lines(run, [report])])


def steps_of_document(run: TracedRun, documents: Sequence[int], form: Form) -> str:
    """Return the report on the steps with any of ``documents``, which are ids, up to the last step of the run."""
    spans = run.tracer.find(np.array(documents, np.uint64), run.samples.end)
    steps = run.samples.steps_of(spans.sample)
    excluded = np.zeros(len(spans), np.bool_)
    for step in np.unique(steps[steps > 0]).tolist():
        of_step = steps == step
        excluded[of_step] = run.excluded_in(step).holds(spans.document[of_step])
    seen = (steps > 0) & ~excluded
    report: dict[str, Any] = {
        "documents": [shown_id(document) for document in documents],
        "last_step": run.samples.last,
        "held_out": all(map(run.is_held_out, documents)),
        "steps": list(_pieces(run, spans.at(seen), steps[seen])),
        "excluded_from": np.unique(steps[excluded]).tolist(),
    }
    return _as_json(run, report) if form.as_json else "\n".join(_document_lines(run, report))


def documents_of_spike(run: TracedRun, form: Form) -> str:
    """Return the report on the worst jump of the loss: the step with it and the step before, with their documents.

    The loss of a step is measured before its update, so either the documents of that step or the update by those of the
    step before are the cause. Raises ``StateError`` if fewer than two losses are recorded.
    """
    spike, usual = _spike(run)
    near = {step: loss for step, loss in run.losses.items() if abs(step - spike) <= _AROUND}
    losses = [{"step": step, "loss": without_non_finite(loss)} for step, loss in near.items()]
    steps = [_step(run, step, form) for step in (spike - 1, spike) if step > 0]
    head: dict[str, Any] = {"spike": {"step": spike, "usual": usual, "losses": losses}, "steps": steps}
    if form.as_json:
        return _as_json(run, head)
    jumped = "jumped to" if not run.losses[spike] <= usual else "never jumped; it came nearest to that with"
    told = (
        f"{run.path}: the loss {jumped} {number(run.losses[spike])} in step {spike:,}; the median of the steps "
        f"before is {usual:.4f}"
    )
    rows = [(f"{step:,}", number(loss)) for step, loss in near.items()]
    lines = [told, "", *table(">>", [("step", "loss"), *rows])]
    for report in steps:
        lines += ["", *_step_lines(report, form)]
    return "\n".join([*lines, *_note_lines(run, steps)])


def _spike(run: TracedRun) -> tuple[int, float]:
    """Return the step whose loss is furthest above the median of the steps before it, and that median."""
    steps = [step for step in run.losses if step <= run.samples.last]
    worst: tuple[float, int, float] | None = None
    for place in range(1, len(steps)):
        before = [run.losses[step] for step in steps[max(0, place - _USUAL) : place]]
        usual = median([loss for loss in before if math.isfinite(loss)] or [math.nan])
        loss = run.losses[steps[place]]
        jump = loss - usual if math.isfinite(loss) else math.inf
        if not math.isnan(usual) and (worst is None or jump > worst[0]):
            worst = (jump, steps[place], usual)
    if worst is None:
        msg = f"metrics.jsonl of {run.path} has the losses of fewer than two steps, so there is no jump to look for"
        raise StateError(msg)
    return worst[1], worst[2]


def _step(run: TracedRun, step: int, form: Form) -> dict[str, Any]:
    begin, end = run.samples.of_step(step)
    texts: list[str | None]
    if form.has_text:
        spans, ids = run.tracer.texts(begin, end)
        texts = [run.tokenizer.decode(each.tolist()) for each in ids]
    else:
        spans = run.tracer.spans(begin, end)
        texts = [None] * len(spans)
    excluded = run.excluded_in(step).holds(spans.document)
    left = [text for text, is_out in zip(texts, excluded.tolist(), strict=True) if not is_out]
    documents = list(_pieces(run, spans.at(~excluded), np.full(int((~excluded).sum()), step)))
    if form.has_text:
        documents = [{**document, "text": text} for document, text in zip(documents, left, strict=True)]
    return {
        "step": step,
        "samples": [begin, end],
        "loss": without_non_finite(run.losses.get(step)),
        "excluded": [shown_id(document) for document in np.unique(spans.document[excluded]).tolist()],
        "documents": documents,
    }


def _pieces(run: TracedRun, spans: Spans, steps: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[dict[str, Any]]:
    begins = {step: run.samples.of_step(step)[0] for step in np.unique(steps).tolist()}
    arrays = (steps, spans.sample, spans.epoch, spans.unit, spans.position, spans.first_token, spans.num_tokens)
    rows = zip(*(array.tolist() for array in (*arrays, spans.column, spans.document)), strict=True)
    for step, sample, epoch, unit, position, first, size, column, document in rows:
        source, name = spans.units[unit]
        yield {
            "step": step,
            "sample": sample,
            "row": sample - begins[step],
            "column": column,
            "source": source,
            "unit": mask_text(name),
            "position": None if position == NO_POSITION else position,
            "epoch": epoch + 1,
            "first_token": first,
            "tokens": size,
            "document": shown_id(document),
        }


def _step_lines(report: Mapping[str, Any], form: Form) -> Iterator[str]:
    begin, end = report["samples"]
    documents = report["documents"]
    tokens = sum(document["tokens"] for document in documents)
    loss = "" if report["loss"] is None else f", loss {number(float(report['loss']))}"
    num_documents = len({document["document"] for document in documents})
    yield (
        f"step {report['step']:,}: samples {begin:,} to {end - 1:,}, {counted(num_documents, 'document')} in "
        f"{counted(len(documents), 'piece')} of {counted(tokens, 'token')}{loss}"
    )
    if report["excluded"]:
        yield f"trained without {counted(len(report['excluded']), 'document')} (data.exclude): " + ", ".join(
            report["excluded"]
        )
    yield ""
    rows = [_cells(document, _DOCUMENT_COLUMNS) for document in documents]
    header, *lines = table("><<>>>><", [_DOCUMENT_COLUMNS, *rows])
    yield header
    for line, document in zip(lines, documents, strict=True):
        yield line
        if form.has_text:
            yield from _text_lines(document["text"], is_full=form.is_full)


def _text_lines(text: str, *, is_full: bool) -> Iterator[str]:
    lines = text.splitlines() if is_full else [one_line(text, _SHORT)]
    yield from (f"    | {one_line(line, len(line) + 1)}" for line in lines)


def _document_lines(run: TracedRun, report: Mapping[str, Any]) -> Iterator[str]:
    pieces, last = report["steps"], report["last_step"]
    name = f"document {' or '.join(report['documents'])}"
    steps = {piece["step"] for piece in pieces}
    if pieces:
        tokens = sum(piece["tokens"] for piece in pieces)
        yield (
            f"{name} was in {len(steps):,} of {counted(last, 'step')}: {counted(len(pieces), 'piece')}, "
            f"{counted(tokens, 'token')}"
        )
        yield ""
        rows = [{**piece, "loss": number(run.losses.get(piece["step"]))} for piece in pieces]
        yield from table(">><<>>>>>", [_STEP_COLUMNS, *(_cells(row, _STEP_COLUMNS) for row in rows)])
    else:
        why = "it is held out for evaluation" if report["held_out"] else "the data that were read so far do not hold it"
        why = "it was excluded (data.exclude)" if report["excluded_from"] else why
        yield f"{name} was in none of {counted(last, 'step')}: {why}"
    if without := report["excluded_from"]:
        told = ", ".join(f"{step:,}" for step in without)
        yield ""
        yield f"it was removed from {counted(len(without), 'step')} (data.exclude): {told}"
    yield from _note_lines(run, [{"documents": pieces}])


def _note_lines(run: TracedRun, reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    notes = [*run.notes]
    if any(document["position"] is None for report in reports for document in report["documents"]):
        notes.append("positions are unknown where the tokens do not record them: the unit is the name of a shard")
    for note in notes:
        yield ""
        yield f"note: {one_line(note)}"


def _cells(entry: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    values = (entry[name.replace(" ", "_")] for name in names)
    return ["-" if value is None else f"{value:,}" if isinstance(value, int) else _end_of(value) for value in values]


def _end_of(name: str) -> str:
    """Return a name as one line; the end of a long path says more than its beginning."""
    shown = one_line(name, len(name) * 6 + 1)
    return shown if len(shown) <= _LONGEST_NAME else f"...{shown[3 - _LONGEST_NAME :]}"


def _as_json(run: TracedRun, report: Mapping[str, Any]) -> str:
    return json.dumps({"run": str(run.path), **report, "notes": [*run.notes]}, indent=1, allow_nan=False)
