import json
import math
from dataclasses import fields

import pytest

from holdfast.application.handlers.log_events import LogEvents
from holdfast.application.handlers.record_events import RecordEvents
from holdfast.domain import events
from holdfast.domain.commands import SaveReason
from holdfast.domain.errors import DataError, StateError
from holdfast.domain.events import (
    CheckpointFailed,
    CheckpointSaved,
    CheckpointStarted,
    CompilationStarted,
    DataEnded,
    DataStalled,
    EvaluationCompleted,
    EvaluationProgressed,
    Event,
    HandlerFailed,
    PreparationEnded,
    PreparationProgressed,
    PreparationStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    SuiteEvaluated,
    SuiteFailed,
    TextGenerated,
)
from holdfast.domain.training.step_outcome import Evaluation, Progress
from tests.support.events import EXAMPLES, PROGRESS

OF_PREPARATION = (PreparationStarted, PreparationProgressed, PreparationEnded)
IN_BETWEEN = (EvaluationProgressed, CompilationStarted)
"""What a host follows, and neither the history nor a person needs."""
each_event = pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)


def test_there_is_an_example_of_every_event():
    """A new event is not forgotten by the tests below."""
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert {type(event) for event in EXAMPLES} == kinds - {Event}


def record_of(event):
    records = []
    RecordEvents(records.append)(event)
    return records


@each_event
def test_every_event_but_a_step_is_recorded_as_json(event):
    """The history has an object for each event, that JSON can hold, with its time, its kind and all its fields."""
    records = record_of(event)
    assert len(records) == (not isinstance(event, (StepCompleted, TextGenerated, *IN_BETWEEN)))
    for record in records:
        again = json.loads(json.dumps(record, allow_nan=False))
        assert again == record
        assert record["event"] == type(event).__name__
        assert record["time"].endswith("+00:00")
        assert ("step" in record) == any(field.name in {"progress", "step"} for field in fields(event))


def test_the_history_says_what_happened():
    """Records hold progress as step and tokens, an evaluation as its figures, and an error as type and message."""
    assert record_of(EXAMPLES[4])[0].items() >= {"step": 7, "tokens": 700, "loss": 2.0}.items()
    assert record_of(EXAMPLES[4])[0]["bits_per_byte"] == pytest.approx(8 / math.log(2) / 16)
    part = EvaluationCompleted(PROGRESS, Evaluation(8.0, 4, 16, {"songs": Evaluation(6.0, 2, 8)}))
    assert record_of(part)[0]["parts"]["songs"]["loss"] == 3.0
    assert record_of(EXAMPLES[8])[0]["error"] == "DataError: line 3 is no JSON"
    assert record_of(EXAMPLES[5])[0].items() >= {"reason": "final", "seconds": 0.5}.items()
    assert record_of(EXAMPLES[10])[0].items() >= {"during": "StepCompleted", "error": "OSError: disk full"}.items()


@each_event
def test_every_event_is_announced_in_one_line_or_not_at_all(event):
    """A person reads at most one line an event; what figures tell better is left to them."""
    lines = []
    LogEvents(lines.append)(event)
    told_elsewhere = isinstance(
        event,
        (
            *(StepCompleted, EvaluationCompleted, TextGenerated, CheckpointStarted, DataEnded, RunFinished, RunFailed),
            *(*OF_PREPARATION, *IN_BETWEEN),
        ),
    )
    assert len(lines) == (not told_elsewhere)
    assert all(line and "\n" not in line for line in lines)


def test_announcements_say_what_a_person_asks():
    """Each line names the step and what was done about it; a new run is not called resumed."""
    lines = []
    for event in [RunStarted(Progress()), *EXAMPLES]:
        LogEvents(lines.append)(event)
    assert lines == [
        "resumed at step 7",
        "step 8 does not fit into memory with micro-batches of 8 rows",
        "micro-batches of 4 from now on; the result is the same but for rounding",
        "step 7 · checkpoint-7 saved (final), 0.50 s",
        (
            "checkpoint-9 is damaged (bad hash): moved to /runs/a/quarantine/checkpoint-9; an older checkpoint is "
            "used, if there is one"
        ),
        "step 7 · stopping: SIGTERM",
        "RecordMetrics.on_step failed on StepCompleted and training continues: OSError: disk full",
        "step 8 · waited 2.5 s for data: reading is slower than training",
        "step 7 · NOT SAVED, training continues and the next save tries again: the disk is full: free some space there",
        "from step 7 on, results are equal up to rounding only: ranks was 1 and is 2",
        "step 7 · archived in s3://bucket/run/checkpoint-7, 1.50 s beside training",
        "step 7 · continues after 61 s without progress",
        "step 7 · moved from disk to archive: the disk is nearly full",
        "step 7 · NOT ARCHIVED, the next checkpoint is tried: s3://bucket cannot be reached: look at the network",
        "step 7 · batches ahead from 4 to 8: training waited for data 43% of its time",
        "step 7 · update DROPPED: the loss is nan",
        "step 7 · suites: arc acc 0.2500, piqa acc_norm 0.5000, 61 s beside training",
        "step 7 · NOT EVALUATED by suites, training continues: there is no task 'ark'",
        "step 12 · ROLLED BACK to step 7: the loss rose from 2.1 to 7.5",
        "step 7 · the loss rose from 2.1 to 7.5; training continues, as there is no checkpoint to roll back to",
        "step 7 · the data differ from 4f1c2a: tokens a document moved from 210 to 420",
    ]


def test_a_wait_at_the_begin_blames_no_disk():
    """While the first batches are read, a wait is no sign that reading is slower than training."""
    lines = []
    for step in (1, 4, 5):
        LogEvents(lines.append)(DataStalled(Progress(step=step), 2.0))
    assert [line.rpartition(": ")[2] for line in lines] == [
        "the first batches are being read",
        "the first batches are being read",
        "reading is slower than training",
    ]


FULL = "checkpoint-{} cannot be written, no space left: free some space"


def test_a_wait_for_suites_is_told():
    """The line of an evaluation by suites for which the run waited at its end says how long it waited."""
    lines = []
    LogEvents(lines.append)(SuiteEvaluated(7, {"arc": {"acc": 0.5}}, 61.0, 40.0))
    assert lines[0].endswith("61 s, waited for 40 s")


def test_an_evaluation_that_fails_at_the_end_promises_no_training():
    """If the run waited for a failed evaluation, no training follows, and the line says nothing of it."""
    lines = []
    for stall in (0.0, 40.0):
        LogEvents(lines.append)(SuiteFailed(7, "it died", stall))
    assert ["training continues" in line for line in lines] == [True, False]


def test_one_trouble_is_told_once():
    """What ends a run is left to its error, and a failure for a reason that was told names no reason again."""
    lines = []
    announce = LogEvents(lines.append)
    for step in (5, 10):
        announce(CheckpointFailed(Progress(step), SaveReason.PERIODIC, FULL.format(step)))
    final = FULL.format(12)
    announce(CheckpointFailed(Progress(12), SaveReason.FINAL, final))
    announce(RunFailed(Progress(12), StateError(final)))
    announce(CheckpointFailed(Progress(12), SaveReason.EXCEPTION, final))
    announce(HandlerFailed("RunFailed", "SaveOnFailure", StateError(final)))
    assert [line.count("no space left") for line in lines] == [1, 0]
    assert ["step 5" in lines[0], "step 10" in lines[1]] == [True, True]


def test_a_trouble_that_comes_back_is_told_again():
    """What failed, worked and fails again is told with its reason, and what keeps failing once an hour."""
    lines, clock = [], [0.0]
    announce = LogEvents(lines.append, lambda: clock[0])
    failed = CheckpointFailed(Progress(5), SaveReason.PERIODIC, FULL.format(5))
    for event in (failed, CheckpointSaved(Progress(10), "checkpoint-10", SaveReason.PERIODIC, 0.5, 0.5), failed):
        announce(event)
    assert [line.count("no space left") for line in lines] == [1, 0, 1]

    lines.clear()
    for seconds in (0.0, 3599.0, 3600.0, 3601.0):
        clock[0] = seconds
        announce(HandlerFailed("StepCompleted", "JsonLines", StateError("metrics.jsonl cannot be written")))
    assert len(lines) == 2


def test_a_last_save_that_fails_after_another_error_is_told():
    """A run that ends for one reason and cannot save for another tells the second once, with the step."""
    lines = []
    announce = LogEvents(lines.append)
    announce(RunFailed(Progress(12), DataError("line 3 is no JSON")))
    announce(CheckpointFailed(Progress(12), SaveReason.EXCEPTION, FULL.format(12)))
    announce(HandlerFailed("RunFailed", "SaveOnFailure", StateError(FULL.format(12))))
    assert [("no space left" in line, "step 12" in line, "StateError" in line) for line in lines] == [
        (True, True, False)
    ]
