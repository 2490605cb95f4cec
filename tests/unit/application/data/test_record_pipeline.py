import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.transform.memory import MemoryTransform
from holdfast.application.data.record_pipeline import FieldWatch, LeftOutDocument, RecordPipeline, Used, Warned
from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Document, Rejected, Unit
from holdfast.ports.transform import Dropped, Record, RecordTransform

UNIT = Unit("file.jsonl", 1, "")
ITEMS = st.lists(st.one_of(st.text("abx", max_size=4), st.just(None)), max_size=12)


class Judge(RecordTransform):
    """Drops texts with x, doubts those with b, scores the others, and fails where ``fails`` says so."""

    fields = ("url",)

    def __init__(self, fails=lambda _: False):
        self.fails = fails
        self.batches = []

    def apply(self, records):
        self.batches.append(len(records))
        if any(map(self.fails, records)):
            msg = "no good"
            raise ValueError(msg)
        return [self.judge(record) for record in records]

    def judge(self, record):
        if "x" in record.text:
            return Dropped("judge.x", "it has an x")
        return replace(record, scores={"length": len(record.text)}, warnings=("judge.b",) * ("b" in record.text))

    def fingerprint(self):
        return "judge 1"


def documents(items):
    return [
        Rejected("bad", place, place + 1) if item is None else Document(item, place, place + 1)
        for place, item in enumerate(items)
    ]


def results(pipeline, items):
    """Return one entry for each result: its kind, its position, and what is known about it."""
    found = []
    for each in pipeline.apply(UNIT, iter(items)):
        match each:
            case Rejected():
                found.append(("rejected", each.start, each.reason))
            case LeftOutDocument():
                found.append(("dropped", each.document.start, each.dropped.reason))
            case Warned():
                found.append(("warned", each.document.start, each.reasons))
            case Used(document, record):
                found.append(("used", document.start, (record.text, dict(record.scores))))
    return found


@given(ITEMS, st.sampled_from([1, 5, 1 << 18]))
def test_each_item_has_its_result_in_its_place(items, batch):
    """However documents are batched, results come in the order of the items, bad records among them."""
    expected = []
    for place, item in enumerate(items):
        if item is None:
            expected.append(("rejected", place, "bad"))
        elif "x" in item:
            expected.append(("dropped", place, "judge.x"))
        elif item:
            expected += [("warned", place, ("judge.b",))] if "b" in item else []
            expected.append(("used", place, (item.upper(), {"length": len(item)})))
    pipeline = RecordPipeline([Judge(), MemoryTransform(str.upper, "upper")], batch_characters=batch)
    assert results(pipeline, documents(items)) == expected


def test_a_text_without_a_reason_is_counted_under_the_name_of_its_transform():
    """A transform of texts that returns nothing drops the document, and so does an empty text of a record."""
    nothing = RecordPipeline([MemoryTransform(lambda text: None if text == "a" else text, "")])
    assert results(nothing, documents(["a", "b"])) == [("dropped", 0, "memory"), ("used", 1, ("b", {}))]

    class Blank(Judge):
        def judge(self, record):
            return replace(record, text="")

    assert results(RecordPipeline([Blank()]), documents(["a"])) == [("dropped", 0, "blank")]


def test_a_record_on_which_a_transform_fails_takes_no_other_with_it():
    """A batch that fails is tried record by record, and the message names setting, class, place and error."""
    pipeline = RecordPipeline([MemoryTransform(str.lower, ""), Judge(lambda record: record.text == "bad")])
    found = results(pipeline, documents(["a", "bad", "x"]))
    assert [(kind, place) for kind, place, _ in found] == [("used", 0), ("rejected", 1), ("dropped", 2)]
    assert found[1][2] == (
        "file.jsonl: data.transforms[1], Judge, failed on the document at position 1, repair one of them: "
        "ValueError: no good"
    )


@pytest.mark.parametrize("wrong", [[], [None], ["text"], [Record("a"), Record("b")]])
def test_a_wrong_number_or_kind_of_results_is_the_transform_s_failure(wrong):
    """A transform that breaks its port's promise rejects its records, by the run's policy."""

    class Wrong(Judge):
        def apply(self, records):
            return wrong

    [(kind, _, reason)] = results(RecordPipeline([Wrong()]), documents(["a"]))
    assert kind == "rejected"
    assert "one record or verdict for each record" in reason


def test_validation_comes_first_and_is_named_as_such():
    """The validation sees the record as it was stored, and an error names its setting."""
    validation = Judge(lambda record: record.text == "A")
    pipeline = RecordPipeline([MemoryTransform(str.upper, "upper")], validation)
    assert pipeline.fingerprints == ["judge 1", "upper"]
    [(_, _, reason)] = results(RecordPipeline([], Judge(lambda _: True)), documents(["a"]))
    assert "data.validation, Judge, failed" in reason
    assert results(pipeline, documents(["a"])) == [("used", 0, ("A", {"length": 1}))]


def test_fields_reach_the_transforms():
    """A record carries the fields of its document, and a text transform leaves them."""
    seen = []

    class Sees(Judge):
        def judge(self, record):
            seen.append(dict(record.fields))
            return record

    item = Document("text", 0, 1, {"url": "https://x"})
    results(RecordPipeline([MemoryTransform(str.upper, ""), Sees()]), [item])
    assert seen == [{"url": "https://x"}]


def test_the_fields_of_a_record_reach_who_uses_it():
    """A document without transforms, or after them, comes with the fields of its record."""
    item = Document("text", 0, 1, {"url": "https://x"})
    for pipeline in (RecordPipeline(), RecordPipeline([MemoryTransform(str.upper, "")])):
        [used] = pipeline.apply(UNIT, [item])
        assert used.record.fields == {"url": "https://x"}


def test_documents_before_an_error_of_the_source_come_first():
    """An error comes where its document would be."""

    def broken():
        yield Document("a", 0, 1)
        msg = "gone"
        raise DataError(msg)

    found = RecordPipeline([Judge()]).apply(UNIT, broken())
    assert next(found).record.text == "a"
    with pytest.raises(DataError, match="gone"):
        next(found)


@settings(max_examples=20)
@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=40))
def test_many_records_are_judged_in_few_calls(texts):
    """Documents without a bad record between them share one call."""
    judge = Judge()
    results(RecordPipeline([judge]), documents(texts))
    assert [size for size in judge.batches if size] == [len(texts)]


def test_fields_that_no_record_has_are_told_once_after_enough_records():
    """A stream, which has no end, hears of them too; a field that comes late is lacking no more."""
    told = []
    watch = FieldWatch(["a", "b", "c"], told.append, minimum=10)
    for number in range(3):
        watch.add([Document("text", place, place + 1, {"a": None}) for place in range(4)])
        assert len(told) == (number == 2)
    watch.add([Document("text", 0, 1, {"b": 1})])
    watch.finish()
    assert told == [
        "data.validation.fields has rules for 'b', 'c', which no record of the 12 read so far has: correct the name"
    ]
    assert "rules for 'c', which" in watch.sentence()


def test_a_lacking_field_is_told_once_by_any_number_of_threads(monkeypatch):
    """Threads that finish at the same time tell it once."""
    told, sentence = [], FieldWatch.sentence

    def slow(watch):
        time.sleep(0.02)
        return sentence(watch)

    monkeypatch.setattr(FieldWatch, "sentence", slow)
    watch = FieldWatch(["lacking"], told.append)
    watch.add([Document("text", 0, 1, {})])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: watch.finish(), range(4)))
    assert len(told) == 1
