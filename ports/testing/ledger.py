"""The contract of ``Ledger``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.data.batch import Spans, UnitName
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import CheckpointRecord, Rejects, SourceCount, StepRecords, StepTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.ports.ledger import Ledger

_CALLS = st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 4), st.integers(0, 2)), max_size=9)
_NOT_CHECKED = [HealthCheck.differing_executors, HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


class LedgerContract(ABC):
    """The contract of every ``Ledger``; derive a class named ``Test...`` for an adapter.

    ``outlives`` says whether a ledger that is opened later in the same place has the records of the first.
    """

    outlives: ClassVar[bool] = True

    @abstractmethod
    def open_ledger(self, place: Path) -> Ledger:
        """Return a ledger in ``place``, an empty folder or that of an earlier ledger of the same test."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Iterator[Ledger]:
        """Yield a ledger in which the run ``one`` has begun."""
        ledger = self.open_ledger(tmp_path)
        ledger.begin_run("one", {"name": "one", "seed": 5}, 100.0)
        yield ledger
        ledger.close()

    def test_steps_are_returned_as_recorded(self, ledger: Ledger) -> None:
        """The current steps of a run come back with all figures, a loss that is not finite too."""
        steps = steps_at(1, 4)
        steps.loss[:] = [2.5, np.nan, np.inf]
        self._record(ledger, steps)
        found = ledger.steps("one")
        assert plain(found)[0] == (1, 0, 4, 2.5, 40)
        assert found.step.tolist() == [1, 2, 3]
        assert math.isnan(found.loss[1])
        assert math.isinf(found.loss[2])

    def test_documents_of_a_step_are_its_spans(self, ledger: Ledger) -> None:
        """A step has exactly the spans of its own samples, in their order, with all their fields."""
        self._record(ledger, steps_at(1, 9))
        for step in (1, 5, 8):
            found = ledger.documents_in("one", step)
            assert plain(found) == plain(spans_of((step - 1) * ROWS, step * ROWS))
            assert found.document.dtype == np.uint64

    def test_a_step_that_is_not_recorded_has_no_documents(self, ledger: Ledger) -> None:
        """A question about an unknown step or run has an empty answer."""
        assert plain(ledger.documents_in("one", 1)) == plain(ledger.documents_in("other", 1)) == []
        assert plain(ledger.steps("one")) == plain(ledger.steps("other")) == []

    def test_steps_of_a_document_are_found_over_all_runs(self, ledger: Ledger) -> None:
        """A document is found in each step of each run that had it, in order, whatever bits its id has."""
        ledger.begin_run("another", {}, 101.0)
        self._record(ledger, steps_at(1, 9))
        self._record(ledger, steps_at(1, 3), run="another")
        for number in (0, 1, 49):
            expected = [
                StepTaken(run, step, 0, is_current=True)
                for run, last in (("another", 2), ("one", 8))
                for step in range(1, last + 1)
                if document_id(number) in spans_of((step - 1) * ROWS, step * ROWS).document
            ]
            assert list(ledger.steps_with(int(document_id(number)))) == expected
        assert list(ledger.steps_with(2**64 - 1)) == []

    def test_counts_are_those_of_the_epoch(self, ledger: Ledger) -> None:
        """The samples, spans and tokens of each source are counted in each of its epochs, over the current steps."""
        self._record(ledger, steps_at(1, 11))
        self._roll_back(ledger, 8)
        for epoch in (0, 1, 2):
            assert ledger.source_counts("one", epoch) == _counted(spans_of(0, 32), epoch)

    def test_repeating_a_record_changes_nothing(self, ledger: Ledger) -> None:
        """A step that is current already stays as it is, alone or beside new steps."""
        self._record(ledger, steps_at(1, 6))
        self._record(ledger, steps_at(1, 6, loss=9.0))
        self._record(ledger, steps_at(3, 8, loss=1.5))
        assert ledger.steps("one").step.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert ledger.steps("one").loss.tolist() == [2.5] * 5 + [1.5] * 2
        assert plain(ledger.documents_in("one", 4)) == plain(spans_of(12, 16))
        taken = [StepTaken("one", step, 0, is_current=True) for step in (1, 7)]
        assert list(ledger.steps_with(int(document_id(1)))) == taken

    def test_a_roll_back_marks_the_later_steps(self, ledger: Ledger) -> None:
        """Steps after the step of a roll-back are no longer current, but the documents in them are still found."""
        self._record(ledger, steps_at(1, 6))
        self._roll_back(ledger, 3)
        assert ledger.steps("one").step.tolist() == [1, 2, 3]
        assert plain(ledger.documents_in("one", 5)) == []
        document = int(spans_of(16, 20).document[0])
        assert list(ledger.steps_with(document)) == [StepTaken("one", 5, 0, is_current=False)]

    def test_other_samples_are_another_attempt(self, ledger: Ledger) -> None:
        """After a roll-back a step with other samples is the current attempt, and the earlier one is kept beside it."""
        self._record(ledger, steps_at(1, 6))
        self._roll_back(ledger, 4)
        self._record(ledger, steps_at(5, 7, shift=ROWS))
        assert plain(ledger.documents_in("one", 5)) == plain(spans_of(20, 24))
        before, after = int(spans_of(16, 20).document[0]), int(spans_of(20, 24).document[0])
        assert list(ledger.steps_with(before)) == [StepTaken("one", 5, 0, is_current=False)]
        assert list(ledger.steps_with(after)) == [StepTaken("one", 5, 1, is_current=True)]

    def test_the_same_samples_are_the_same_attempt(self, ledger: Ledger) -> None:
        """A step that a killed run takes again with the same samples is current again, once, with its new loss."""
        self._record(ledger, steps_at(1, 6))
        self._roll_back(ledger, 2)
        self._record(ledger, steps_at(3, 5, loss=2.25))
        assert ledger.steps("one").step.tolist() == [1, 2, 3, 4]
        assert ledger.steps("one").loss.tolist() == [2.5, 2.5, 2.25, 2.25]
        document = int(spans_of(12, 16).document[0])
        assert list(ledger.steps_with(document)) == [StepTaken("one", 4, 0, is_current=True)]

    def test_a_record_replaces_other_samples(self, ledger: Ledger) -> None:
        """One attempt alone is current, even if no roll-back was recorded in between."""
        self._record(ledger, steps_at(1, 4))
        self._record(ledger, steps_at(3, 4, shift=ROWS))
        assert ledger.steps("one").step.tolist() == [1, 2, 3]
        assert plain(ledger.documents_in("one", 3)) == plain(spans_of(12, 16))

    @given(calls=_CALLS)
    @settings(max_examples=10, deadline=None, suppress_health_check=_NOT_CHECKED)
    def test_any_calls_leave_one_current_attempt(self, ledger: Ledger, calls: list[tuple[bool, int, int, int]]) -> None:
        """After any records and roll-backs each step is current at most once, with the samples of its last record."""
        expected: dict[int, int] = {}
        run = f"run {uuid4()}"
        ledger.begin_run(run, {}, 1.0)
        for is_record, step, count, shift in calls:
            if is_record:
                steps = steps_at(step + 1, step + 1 + count, shift=shift)
                ledger.record(run, steps, spans_in(steps))
                expected |= dict.fromkeys(range(step + 1, step + 1 + count), shift)
            else:
                ledger.roll_back(run, step)
                expected = {number: shift for number, shift in expected.items() if number <= step}
        ledger.flush()
        found = ledger.steps(run)
        assert len(found.step) == len(expected)
        assert dict(zip(found.step.tolist(), (found.first_sample % ROWS).tolist(), strict=True)) == expected
        for step, shift in list(expected.items())[:2]:
            begin = (step - 1) * ROWS + shift
            assert plain(ledger.documents_in(run, step)) == plain(spans_of(begin, begin + ROWS))

    def test_rejects_are_recorded_once(self, ledger: Ledger) -> None:
        """Each record that was left out is there once for each rule, sorted by its place."""
        rejects = Rejects(np.array([2, 0]), np.array([7, 2**33]), ("c4.lorem", "schema"), ("läuft", "text"), UNITS)
        ledger.reject("one", rejects)
        ledger.reject("one", rejects)
        ledger.flush()
        expected = [(UNITS[2], 7, "c4.lorem", "läuft"), (UNITS[0], 2**33, "schema", "text")]
        assert plain(ledger.rejected("one")) == expected

    @pytest.mark.parametrize("text", ["a\0b", "a\udcffb", "a\n'\"\\u0000;b", "é" * 5000])
    def test_any_text_is_recorded(self, ledger: Ledger, text: str) -> None:
        """Names, reasons and details may hold any characters; one that cannot be stored may be replaced by another."""
        ledger.begin_run("text", {"name": text}, 1.0)
        unit = UnitName(text[:100], text[:100])
        ledger.reject("text", Rejects(np.array([0]), np.array([7]), ("rule",), (text,), (unit,)))
        steps = steps_at(1, 2)
        ledger.record("text", steps, replace(spans_in(steps), units=(unit, *UNITS[1:])))
        ledger.flush()
        ((found, position, _, reason),) = plain(ledger.rejected("text"))
        stored = text.replace("\0", "\ufffd").replace("\udcff", "\ufffd")
        assert position == 7
        assert reason in {text, stored}
        assert found.unit in {text[:100], stored[:100]}
        assert found in {row[2] for row in plain(ledger.documents_in("text", 1))}

    def test_a_checkpoint_replaces_that_of_its_step(self, ledger: Ledger) -> None:
        """The last checkpoint of each step is returned, ordered by step."""
        saved = [CheckpointRecord(9, "a", "cadence", 5.0), CheckpointRecord(3, "b", "cadence", 1.0)]
        for one in (*saved, CheckpointRecord(9, "c", "stop", 6.5)):
            ledger.checkpoint("one", one)
        ledger.flush()
        assert list(ledger.checkpoints("one")) == [saved[1], CheckpointRecord(9, "c", "stop", 6.5)]

    def test_spans_outside_the_steps_are_an_error(self, ledger: Ledger) -> None:
        """Spans of samples that belong to no step of the record are refused, and nothing of the record is kept."""
        with pytest.raises(StateError):
            ledger.record("one", steps_at(1, 3), spans_of(0, 9))
        ledger.flush()
        assert plain(ledger.steps("one")) == []

    def test_records_outlive_the_ledger(self, ledger: Ledger, tmp_path: Path) -> None:
        """A ledger that is opened later in the same place has all records, and goes on with them."""
        if not self.outlives:
            pytest.skip("its records end with it")
        self._record(ledger, steps_at(1, 6))
        ledger.close()
        ledger.close()
        with closing(self.open_ledger(tmp_path)) as again:
            again.begin_run("one", {"name": "renamed"}, 200.0)
            self._roll_back(again, 3)
            self._record(again, steps_at(4, 8))
            assert again.steps("one").step.tolist() == [1, 2, 3, 4, 5, 6, 7]
            assert plain(again.documents_in("one", 5)) == plain(spans_of(16, 20))

    def _record(self, ledger: Ledger, steps: StepRecords, run: str = "one") -> None:
        ledger.record(run, steps, spans_in(steps))
        ledger.flush()

    def _roll_back(self, ledger: Ledger, to_step: int) -> None:
        ledger.roll_back("one", to_step)
        ledger.flush()


def _counted(spans: Spans, epoch: int) -> dict[str, SourceCount]:
    rows = [row for row in plain(spans) if row[1] == epoch]
    sources: Iterable[str] = {row[2].source for row in rows}
    return {source: _count_of([row for row in rows if row[2].source == source]) for source in sources}


def _count_of(rows: Sequence[tuple[Any, ...]]) -> SourceCount:
    return SourceCount(len({row[0] for row in rows}), len(rows), sum(row[6] for row in rows))


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
