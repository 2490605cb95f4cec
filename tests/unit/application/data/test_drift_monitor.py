"""The comparison of a run's data with an earlier version."""

from __future__ import annotations

import json

import pytest

from holdfast.application.data.drift_monitor import DriftMonitor
from holdfast.application.handlers.log_events import sentence_of
from holdfast.application.handlers.record_events import record_of
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError
from holdfast.domain.events import RunStarted, StepCompleted
from holdfast.domain.training.step_outcome import Progress
from tests.support.profiles import documents, profile_of_documents

STEP = Progress(7, 100, Cursor(10))


@pytest.fixture(scope="module")
def reference():
    return profile_of_documents(0, 500)


def test_drift_of_a_stream_is_published_once_with_the_next_event(reference):
    """Documents are compared every so many, and the same drift is not published again."""
    published = []
    monitor = DriftMonitor("march", reference, published.append, stops=False, every=200)
    monitor.add(*documents(1, 150, factor=2))
    monitor.on_event(RunStarted(STEP))
    assert published == []
    for seed in range(2, 6):
        monitor.add(*documents(seed, 150, factor=2))
    monitor.on_event(StepCompleted(STEP, None))
    monitor.on_event(StepCompleted(STEP, None))
    (event,) = published
    assert event.reference == "march"
    assert {"tokens", "bytes"} <= {figure["name"] for figure in event.figures}
    assert event.verdict.startswith("major drift: tokens a document")
    assert sentence_of(event) == f"step 7 · the data differ from march: {event.verdict}"
    assert json.loads(json.dumps(record_of(event)))["figures"][0]["measure"] == "PSI"


def test_data_that_did_not_drift_are_not_reported(reference):
    """Samples of the same corpus publish nothing and stop nothing."""
    published = []
    monitor = DriftMonitor("march", reference, published.append, stops=True, every=100)
    for seed in range(1, 5):
        monitor.add(*documents(seed, 120))
    monitor.check(profile_of_documents(9, 400))
    monitor.on_event(StepCompleted(STEP, None))
    assert published == []


def test_tokens_of_another_tokenizer_are_no_drift(reference):
    """A run whose tokenizer is not that of the reference is compared by its texts, and says so once."""
    published, told = [], []
    other = DriftMonitor(
        "march", reference, published.append, stops=True, every=100, has_same_tokens=lambda: False, report=told.append
    )
    texts, ids, offsets, hashes = documents(1, 400)
    for _ in range(2):
        other.add(texts, ids * 3 + 7, offsets, hashes)
    assert told == [
        "figures of tokens are not compared with march, which is not known to have the tokenizer of this run"
    ]
    same = DriftMonitor("march", reference, published.append, stops=True, every=100)
    with pytest.raises(DataError, match="frequent tokens"):
        same.add(texts, ids * 3 + 7, offsets, hashes)


def test_major_drift_stops_the_run(reference):
    """With the action stop, both a whole profile and a stream raise an error that names the figures, published too."""
    published = []
    monitor = DriftMonitor("march", reference, published.append, stops=True, every=100)
    with pytest.raises(DataError, match=r"differ from march, major drift: tokens a document .*action=warn"):
        monitor.check(profile_of_documents(1, 400, factor=2))
    with pytest.raises(DataError, match="major drift"):
        monitor.add(*documents(1, 400, factor=2))
    monitor.on_event(StepCompleted(STEP, None))
    assert len(published) == 1
