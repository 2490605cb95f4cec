"""Steps and spans for tests of ledgers: pure functions of the number of a sample."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from holdfast.domain.data.document_spans import Spans, UnitName
from holdfast.ports.ledger import Rejects, StepRecords

ROWS = 4
UNITS = (UnitName("web", "a.jsonl"), UnitName("web", "b.jsonl"), UnitName("código", "c.jsonl"))


def steps_at(first: int, end: int, *, shift: int = 0, loss: float = 2.5) -> StepRecords:
    """Return the steps from ``first`` up to ``end``, of ``ROWS`` samples each, which begin ``shift`` samples later."""
    step = np.arange(first, end)
    begin = (step - 1) * ROWS + shift
    return StepRecords(step, begin, begin + ROWS, np.full(len(step), loss), np.full(len(step), 40))


def spans_of(first: int, end: int) -> Spans:
    """Return two spans for each sample from ``first`` up to ``end``: a pure function of the number of the sample.

    The ids of the documents fill all 64 bits. A sample is in the epoch 1 from number 20 on.
    """
    sample = np.repeat(np.arange(first, end), 2)
    number = 2 * sample + np.tile([0, 1], end - first)
    return Spans(
        sample=sample,
        epoch=(sample >= 20).astype(np.int64),
        unit=sample % 3,
        document=document_id(number),
        position=number + 2**40,
        first_token=3 * number,
        num_tokens=number % 7 + 1,
        units=UNITS,
    )


def document_id(number: Any) -> Any:
    """Return the id, uint64, of the document in the span ``number``."""
    with np.errstate(over="ignore"):
        return (np.asarray(number) % 50).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def spans_in(steps: StepRecords) -> Spans:
    """Return the spans of all samples of ``steps``, which have no gaps."""
    return spans_of(int(steps.first_sample[0]), int(steps.end_sample[-1])) if len(steps.step) else spans_of(0, 0)


def plain(records: Spans | StepRecords | Rejects) -> list[tuple[Any, ...]]:
    """Return one tuple for each element of ``records``, with the names of units in place of their numbers."""
    columns = []
    for field in fields(records):
        values = getattr(records, field.name)
        if field.name == "unit":
            columns.append([records.units[number] for number in values.tolist()])  # type: ignore[union-attr]
        elif field.name != "units":
            columns.append(list(values.tolist() if isinstance(values, np.ndarray) else values))
    return list(zip(*columns, strict=True))
