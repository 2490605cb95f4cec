import json
import math
import threading
from contextlib import closing
from dataclasses import fields

import pytest

from holdfast.adapters.monitor.memory import MemoryMonitor
from holdfast.application.handlers import record_metrics
from holdfast.application.handlers.evaluate_on_cadence import EvaluateOnCadence
from holdfast.application.handlers.log_events import LogEvents
from holdfast.application.handlers.record_events import RecordEvents
from holdfast.application.handlers.record_metrics import RecordMetrics
from holdfast.application.handlers.save_checkpoints import SaveOnCadence, SaveOnStop
from holdfast.application.inbox import Inbox
from holdfast.domain import events
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import Evaluate, SaveCheckpoint, SaveReason
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError, StateError, TrainingError
from holdfast.domain.events import (
    ArchiveFailed,
    BatchSplit,
    CheckpointArchived,
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStarted,
    ContractWeakened,
    DataEnded,
    DataStalled,
    EvaluationCompleted,
    Event,
    HandlerFailed,
    MemoryExhausted,
    ResourcesAdjusted,
    RollBackSkipped,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStalled,
    RunStarted,
    StepCompleted,
    StopRequested,
    UpdateDropped,
)
from holdfast.domain.resources.knobs import Knob
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from holdfast.domain.training.progress import Progress
from holdfast.domain.training.step_outcome import DataSupply, Evaluation, StepOutcome
from holdfast.ports.monitor import Monitor
from holdfast.ports.optimizer import Hardware
from tests.support.loop import Loop

PROGRESS = Progress(7, 700, Cursor(28))
OUTCOME = StepOutcome(
    losses=[3.0, 5.0],
    num_targets=4,
    num_tokens=100,
    grad_norm=1.5,
    learning_rate=0.1,
    micro_batch=2,
    step_seconds=0.75,
    supply=DataSupply(0.25, batches_ready=3, bytes_read=9000, read_retries=2, rejected=1),
)
EXAMPLES = [
    RunStarted(PROGRESS),
    StepCompleted(PROGRESS, OUTCOME),
    MemoryExhausted(PROGRESS, 8, "no room"),
    BatchSplit(PROGRESS, 4),
    EvaluationCompleted(PROGRESS, Evaluation(8.0, 4, 16)),
    CheckpointSaved(PROGRESS, "/runs/a/checkpoint-7", SaveReason.FINAL, 0.5, 0.5),
    CheckpointRejected("checkpoint-9", "bad hash", "/runs/a/quarantine/checkpoint-9"),
    StopRequested(PROGRESS, "SIGTERM", 15),
    RunFailed(PROGRESS, DataError("line 3 is no JSON")),
    RunFinished(PROGRESS),
    HandlerFailed("StepCompleted", "RecordMetrics.on_step", OSError("disk full")),
    DataEnded(PROGRESS),
    CheckpointStarted(PROGRESS, SaveReason.FINAL),
    DataStalled(PROGRESS, 2.5),
    CheckpointFailed(PROGRESS, SaveReason.PERIODIC, "the disk is full: free some space there"),
    ContractWeakened(PROGRESS, ["ranks was 1 and is 2"]),
    CheckpointArchived(7, "s3://bucket/run/checkpoint-7", 1.5),
    RunStalled(PROGRESS, 61.0, "rank 1 tells nothing any more"),
    CheckpointMoved(7, Tier.DISK, Tier.ARCHIVE, "the disk is nearly full"),
    ArchiveFailed(7, "s3://bucket cannot be reached: look at the network"),
    ResourcesAdjusted(PROGRESS, Knob.PREFETCH, 4, 8, "training waited for data 43% of its time"),
    UpdateDropped(PROGRESS, "the loss is nan"),
    RolledBack(PROGRESS, 12, "the loss rose from 2.1 to 7.5"),
    RollBackSkipped(PROGRESS, "the loss rose from 2.1 to 7.5"),
]
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
    assert len(records) == (not isinstance(event, StepCompleted))
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
    assert record_of(EXAMPLES[8])[0]["error"] == "DataError: line 3 is no JSON"
    assert record_of(EXAMPLES[5])[0].items() >= {"reason": "final", "seconds": 0.5}.items()
    assert record_of(EXAMPLES[10])[0].items() >= {"during": "StepCompleted", "error": "OSError: disk full"}.items()


@each_event
def test_every_event_is_announced_in_one_line_or_not_at_all(event):
    """A person reads at most one line an event; what figures tell better is left to them."""
    lines = []
    LogEvents(lines.append)(event)
    told_elsewhere = isinstance(
        event, (StepCompleted, EvaluationCompleted, CheckpointStarted, DataEnded, RunFinished, RunFailed)
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
        "from step 7 on equal but for rounding, not to the bit: ranks was 1 and is 2",
        "step 7 · archived in s3://bucket/run/checkpoint-7, 1.50 s beside training",
        "step 7 · continues after 61 s without progress",
        "step 7 · moved from disk to archive: the disk is nearly full",
        "step 7 · NOT ARCHIVED, the next checkpoint is tried: s3://bucket cannot be reached: look at the network",
        "step 7 · batches ahead from 4 to 8: training waited for data 43% of its time",
        "step 7 · update DROPPED: the loss is nan",
        "step 12 · ROLLED BACK to step 7: the loss rose from 2.1 to 7.5",
        "step 7 · the loss rose from 2.1 to 7.5; training continues, as there is no checkpoint to roll back to",
    ]


FULL = "checkpoint-{} cannot be written, no space left: free some space"


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


class Device:
    """Stands for a trainable on some hardware."""

    def __init__(self, peak_flops):
        self.hardware = Hardware("device", "bf16", 10, flops_per_token=60.0, peak_flops=peak_flops)

    memory_retries = 0

    def memory_bytes(self):
        return 12345


def record(monitor, reaction, event, device, **options):
    """Let the metrics of ``event`` be recorded, and return when they are."""
    with closing(RecordMetrics([monitor], device, **options)) as recorder:
        getattr(recorder, reaction)(event)


@pytest.mark.parametrize("peak_flops", [None, 60_000.0])
def test_the_figures_of_a_step_reach_the_monitor(peak_flops):
    """A monitor gets loss, rate, speed, data and memory of each step, and MFU where the device's peak is known."""
    monitor = MemoryMonitor()
    seconds = iter([10.0, 10.5])
    record(monitor, "on_step", EXAMPLES[1], Device(peak_flops), clock=lambda: next(seconds))
    expected = {
        "tokens": 700,
        "loss": 2.0,
        "lr": 0.1,
        "grad_norm": 1.5,
        "tokens_per_second": 100 / 1.5,
        "data_wait_seconds": 0.25,
        "batches_ready": 3,
        "bytes_read": 9000,
        "read_retries": 2,
        "rejected": 1,
        "memory_bytes": 12345,
        "micro_batch": 2,
        "dropped_updates": 0,
        "rollbacks": 0,
        "memory_retries": 0,
    }
    ((step, metrics),) = monitor.records
    assert step == 7
    assert metrics == pytest.approx(expected | ({"mfu": 0.1 / 1.5} if peak_flops else {}))


def test_the_figures_of_an_evaluation_reach_the_monitor():
    """A monitor gets loss and bits a byte of each evaluation, apart from those of training."""
    monitor = MemoryMonitor()
    record(monitor, "on_evaluation", EXAMPLES[4], Device(None))
    ((step, metrics),) = monitor.records
    assert (step, metrics["tokens"], metrics["eval_loss"]) == (7, 700, 2.0)
    assert metrics["eval_bits_per_byte"] == pytest.approx(8 / math.log(2) / 16)


def test_every_step_stands_once_in_the_figures_of_a_resumed_run():
    """A run that is taken up again at an earlier step makes the monitor forget the later ones."""
    monitor = MemoryMonitor()
    first = Loop(save_every=3)
    first.at_step(5, lambda: setattr(first.trainable, "before_part", interrupt))

    def interrupt(step, part):
        raise KeyboardInterrupt

    with closing(RecordMetrics([monitor], first.trainable)) as recorder:
        first.bus.subscribe(StepCompleted, recorder.on_step)
        with pytest.raises(KeyboardInterrupt):
            first.run()
    second = Loop(first.store)
    with closing(RecordMetrics([monitor], second.trainable)) as recorder:
        second.bus.subscribe(RunStarted, recorder.on_start)
        second.bus.subscribe(StepCompleted, recorder.on_step)
        second.run()
    assert [step for step, _ in monitor.records] == list(range(1, 9))


def at(step):
    return StepCompleted(Progress(step, step * 100), OUTCOME)


def orders(handler, inbox, steps):
    """Return what ``handler`` orders in answer to each of ``steps``."""
    answers = []
    for event in steps:
        handler(event)
        answers.append(inbox.drain())
    return answers


def test_checkpoints_are_due_on_their_cadence_and_at_the_end():
    """A save is ordered at each multiple and once at the end of the budget, as the final one."""
    inbox = Inbox()
    handler = SaveOnCadence(Cadence(2), Budget(steps=4), inbox)
    periodic, final = [SaveCheckpoint()], [SaveCheckpoint(SaveReason.FINAL)]
    assert orders(handler, inbox, map(at, range(1, 5))) == [[], periodic, [], final]
    never = SaveOnCadence(Cadence(0), Budget(steps=3), inbox)
    assert orders(never, inbox, map(at, range(1, 4))) == [[], [], final]


def test_checkpoints_follow_the_rhythm_that_a_run_can_afford():
    """From its adjustment on, saves are due at multiples of the new number of steps; no other adjustment counts."""
    inbox = Inbox()
    handler = SaveOnCadence(Cadence(2), Budget(steps=99), inbox)
    handler.on_adjusted(ResourcesAdjusted(PROGRESS, Knob.PREFETCH, 4, 5, "why"))
    assert orders(handler, inbox, map(at, range(1, 5))) == [[], [SaveCheckpoint()], [], [SaveCheckpoint()]]
    handler.on_adjusted(ResourcesAdjusted(PROGRESS, Knob.SAVE_EVERY, 2, 4, "why"))
    assert orders(handler, inbox, map(at, range(5, 9))) == [[], [], [], [SaveCheckpoint()]]


@pytest.mark.parametrize(("signal", "reason"), [(None, SaveReason.FINAL), (15, SaveReason.PREEMPT)])
def test_a_stop_is_answered_with_a_checkpoint(signal, reason):
    """A run that is asked to stop saves, and the checkpoint tells whether a signal asked."""
    inbox = Inbox()
    SaveOnStop(inbox)(StopRequested(PROGRESS, "why", signal))
    assert inbox.drain() == [SaveCheckpoint(reason)]


def test_evaluations_are_due_on_their_cadence_and_at_the_end():
    """An evaluation is ordered at each multiple and once at the end of the budget."""
    inbox = Inbox()
    handler = EvaluateOnCadence(Cadence(2), Budget(steps=5), inbox, at_start=False)
    assert orders(handler.on_step, inbox, map(at, range(1, 6))) == [[], [Evaluate()], [], [Evaluate()], [Evaluate()]]


@pytest.mark.parametrize(("step", "at_start", "expected"), [(0, True, 1), (0, False, 0), (7, True, 0)])
def test_only_a_new_run_is_evaluated_at_its_start(step, at_start, expected):
    """The untrained model is measured if asked for, a resumed one is not measured again."""
    inbox = Inbox()
    EvaluateOnCadence(Cadence(0), Budget(steps=9), inbox, at_start=at_start).on_start(RunStarted(Progress(step)))
    assert inbox.drain() == [Evaluate()] * expected


GONE = "gone"


class BrokenMonitor(Monitor):
    """A monitor whose sink is gone."""

    def record(self, step, metrics):
        raise OSError(GONE)

    def rewind(self, step):
        raise OSError(GONE)

    def close(self):
        pass


def test_a_monitor_that_fails_does_not_deprive_the_others():
    """Figures reach the monitors behind a broken one, and the failure is raised at a later event all the same."""
    monitor = MemoryMonitor()
    recorder = RecordMetrics([BrokenMonitor(), monitor, BrokenMonitor()], Device(None))
    recorder.on_step(EXAMPLES[1])
    with pytest.raises(ExceptionGroup) as raised:
        recorder.settle(EXAMPLES[9])
    recorder.settle(EXAMPLES[9])
    recorder.close()
    assert [str(error) for error in raised.value.exceptions] == [GONE, GONE]
    assert len(monitor.records) == 1


class SlowMonitor(MemoryMonitor):
    """A monitor that takes records only while it is let."""

    def __init__(self):
        super().__init__()
        self.let = threading.Event()

    def record(self, step, metrics):
        assert self.let.wait(20)
        super().record(step, metrics)


def test_the_loop_waits_for_monitors_before_a_checkpoint_and_never_at_a_step(monkeypatch):
    """A slow monitor holds up no step; before state is captured it has every figure so far, or the loop is told."""
    monitor = SlowMonitor()
    monkeypatch.setattr(record_metrics, "_PATIENCE_SECONDS", 0.05)
    recorder = RecordMetrics([monitor], Device(None))
    for number in range(1, 101):
        recorder.on_step(at(number))
    with pytest.raises(TrainingError, match="have not answered"):
        recorder.settle(EXAMPLES[-2])
    assert not monitor.records
    monkeypatch.setattr(recorder, "_patience", 20)
    monitor.let.set()
    recorder.settle(EXAMPLES[-2])
    assert [step for step, _ in monitor.records] == list(range(1, 101))
    recorder.close()


def test_monitors_that_hang_keep_no_checkpoint_from_being_made(monkeypatch):
    """A wait for monitors in vain is told as ``HandlerFailed``; the checkpoint is made, and the run ends well."""
    monitor, loop = SlowMonitor(), Loop(budget=Budget(steps=2))
    monkeypatch.setattr(record_metrics, "_PATIENCE_SECONDS", 0.05)
    with closing(RecordMetrics([monitor], loop.trainable)) as recorder:
        loop.bus.subscribe(StepCompleted, recorder.on_step)
        loop.bus.subscribe(CheckpointStarted, recorder.settle)
        assert loop.run().step == 2
        monitor.let.set()
    assert loop.story[-4:] == ["CheckpointStarted", "HandlerFailed", "CheckpointSaved", "RunFinished"]
    (failure,) = loop.published(HandlerFailed)
    assert "have not answered" in str(failure.error)
    assert [info.progress.step for info in loop.store.list()] == [2]


def test_figures_are_dropped_before_they_fill_the_memory(monkeypatch):
    """Behind too many steps figures are dropped, which is said once, and taken when the monitors have caught up."""
    monitor = SlowMonitor()
    monkeypatch.setattr(record_metrics, "_MOST_WAITING", 3)
    recorder = RecordMetrics([monitor], Device(None))
    complaints = []
    for number in range(1, 9):
        try:
            recorder.on_step(at(number))
        except TrainingError as error:
            complaints.append(str(error))
    monitor.let.set()
    recorder.settle(EXAMPLES[-2])
    recorder.on_step(at(20))
    recorder.close()
    steps = [step for step, _ in monitor.records]
    assert len(complaints) in {1, 2}
    assert 3 <= len(steps) <= 5
    assert steps[-1] == 20
