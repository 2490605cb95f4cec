from dataclasses import dataclass, field

import pytest

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers import run_suites
from holdfast.application.handlers.run_suites import RunSuites, SuiteOutcome
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import SaveReason, StopRun
from holdfast.domain.errors import StateError
from holdfast.domain.events import (
    CheckpointSaved,
    DataEnded,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StopRequested,
    SuiteEvaluated,
    SuiteFailed,
)
from tests.support.events import at

FULL = "the disk is full"
RESULTS = {"arc": {"acc": 0.25}}
DONE = SuiteOutcome(RESULTS, 5.0)


@dataclass
class Process:
    """A process that evaluates a checkpoint until it is told the outcome."""

    steps: list = field(default_factory=list)
    started: list = field(default_factory=list)
    running: int | None = None
    result: SuiteOutcome | None = None
    obstacle: str | None = None
    share: float | None = None
    looks: int = 0
    on_look: object = lambda self: None

    def kept(self):
        return sorted(self.steps)

    def keep(self, step):
        self.steps.append(step)

    def release(self, step):
        self.steps.remove(step)

    def start(self, step):
        assert self.running is None, "one process at a time"
        self.running = step
        self.started.append(step)

    def outcome(self):
        self.looks += 1
        self.on_look(self)
        result, self.result = self.result, None
        if result is not None:
            self.running = None
        return result

    def stop(self):
        self.running = None


class Suites:
    """A handler over a process, and what it publishes and records."""

    def __init__(self, folder, *, every=0, process=None):
        self.process = process or Process()
        self.inbox = Inbox()
        self.published = []
        self.lines = JsonLines(folder / "evaluations.jsonl")
        publish = self.published.append
        self.now = 0.0
        clock = lambda: self.now  # noqa: E731
        self.handler = RunSuites(
            self.process, every, self.lines, self.inbox, SingleProcessGroup(), publish, clock=clock
        )

    def start(self, step=0):
        self.handler.on_start(RunStarted(at(step).progress))

    def save(self, step, reason=SaveReason.PERIODIC):
        self.handler.on_saved(CheckpointSaved(at(step).progress, f"/r/checkpoint-{step}", reason, 0.1, 0.1))

    def end(self, step):
        self.handler.on_end(RunFinished(at(step).progress))

    def stop(self, signal=None, *, is_early=False):
        self.inbox.post(StopRun("enough", signal))
        self.handler.on_stop(StopRequested(at(1).progress, "enough", signal, is_early))

    def answer(self, outcome=DONE):
        self.process.result = outcome
        self.handler.on_step(at(99))

    @property
    def recorded(self):
        return [(each["step"], each["results"]) for each in self.lines.read()]


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a handler; the file of its results is closed at the end."""
    made = []

    def build(**options):
        made.append(Suites(tmp_path, **options))
        return made[-1]

    yield build
    for suites in made:
        suites.lines.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(run_suites, "_LOOK_SECONDS", 0.0)


def test_a_full_disk_loses_neither_results_nor_the_next_evaluation(make, monkeypatch):
    """If results cannot be written, they are published all the same, and the checkpoint that waits is evaluated."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.save(20)

    def refuse(_):
        raise StateError(FULL)

    monkeypatch.setattr(suites.lines, "append", refuse)
    with pytest.raises(StateError, match=FULL):
        suites.answer()
    assert suites.published == [SuiteEvaluated(10, RESULTS, 5.0)]
    assert suites.process.running == 20


@pytest.mark.parametrize(
    ("every", "saved", "evaluated"),
    [
        (0, [10, 20, 30], []),
        (10, [10, 20, 30], [10, 20, 30]),
        (20, [10, 20, 30, 40], [20, 40]),
        (25, [10, 20, 30, 40, 50], [30, 50]),
        (100, [40, 80, 120, 160, 200], [120, 200]),
    ],
)
def test_the_first_checkpoint_of_each_interval_is_evaluated(make, every, saved, evaluated):
    """A checkpoint is due at each multiple, or as the first one after it; 0 leaves all but the last out."""
    suites = make(every=every)
    suites.start()
    for step in saved:
        suites.save(step)
        if suites.process.running is not None:
            suites.answer()
    assert suites.process.started == evaluated
    assert suites.recorded == [(step, RESULTS) for step in evaluated]
    assert suites.published == [SuiteEvaluated(step, RESULTS, 5.0) for step in evaluated]
    assert suites.process.steps == []


def test_a_newer_checkpoint_replaces_one_that_waits(make):
    """While one is evaluated the newest waits, and only those two are kept."""
    suites = make(every=10)
    suites.start()
    for step in (10, 20, 30):
        suites.save(step)
    assert suites.process.steps == [10, 30]
    suites.answer()
    assert suites.process.started == [10, 30]
    suites.answer()
    assert [step for step, _ in suites.recorded] == [10, 30]
    assert suites.process.steps == []


def test_a_failure_is_one_event_and_the_next_checkpoint_is_evaluated(make):
    """A process that dies costs its results alone."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.save(20)
    suites.answer(SuiteOutcome({}, 1.0, "it died"))
    assert suites.published == [SuiteFailed(10, "it died")]
    assert suites.process.running == 20
    assert suites.recorded == []


def test_the_last_checkpoint_is_waited_for(make):
    """The end of a run waits for the process, and for the one behind it, and its events come before the end."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.save(15, SaveReason.FINAL)

    def answer(process):
        process.result = DONE if process.looks % 5 == 0 else None

    suites.process.on_look = answer
    suites.end(15)
    assert [step for step, _ in suites.recorded] == [10, 15]


def test_the_wait_at_the_end_is_published_with_each_outcome(make):
    """Each outcome has the seconds that the run waited for it, none while it trained."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.now = 30.0
    suites.answer()
    suites.save(20)
    suites.save(25, SaveReason.FINAL)

    def answer(process):
        suites.now += 2.0
        process.result = DONE if process.looks % 5 == 0 else None

    suites.process.looks, suites.process.on_look = 0, answer
    suites.end(25)
    assert [event.stall_seconds for event in suites.published] == [0.0, 10.0, 10.0]


def test_a_last_checkpoint_that_was_a_periodic_one_is_evaluated_too(make):
    """No second save is made of the same step, so the end of the data finds it saved."""
    suites = make()
    suites.start()
    suites.save(10)
    suites.process.on_look = lambda process: setattr(process, "result", DONE)
    suites.handler.on_data_end(DataEnded(at(10).progress))
    suites.stop()
    suites.end(10)
    assert suites.recorded == [(10, RESULTS)]


def test_a_run_that_stops_early_is_at_its_end(make):
    """The last checkpoint of a run that early stopping ends is evaluated and waited for."""
    suites = make()
    suites.start()
    suites.stop(is_early=True)
    suites.save(10, SaveReason.FINAL)
    suites.process.on_look = lambda process: setattr(process, "result", DONE)
    suites.end(10)
    assert suites.recorded == [(10, RESULTS)]


@pytest.mark.parametrize("signal", [None, 15])
def test_a_stopped_run_does_not_wait_and_evaluates_at_its_next_start(make, signal):
    """A stop leaves what was running or waiting kept, and the next start takes it up again."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.stop(signal)
    suites.save(20, SaveReason.PREEMPT if signal else SaveReason.FINAL)
    suites.end(20)
    assert suites.process.running is None
    assert suites.process.steps == [10, 20]
    again = make(every=10, process=suites.process)
    again.start(20)
    again.answer()
    again.answer()
    assert again.process.started == [10, 10, 20]
    assert [step for step, _ in again.recorded] == [10, 20]


@pytest.mark.parametrize("signal", [None, 2])
def test_a_stop_ends_the_wait(make, signal):
    """Ctrl-C while the last evaluation is waited for ends the process, which is started again next time."""
    suites = make()
    suites.start()
    suites.save(10, SaveReason.FINAL)
    suites.process.on_look = lambda process: (
        suites.inbox.post(StopRun("enough", signal)) if process.looks == 3 else None
    )
    suites.end(10)
    assert suites.process.looks == 3
    assert suites.process.steps == [10]
    assert suites.process.running is None


def test_a_roll_back_forgets_later_checkpoints(make):
    """Evaluations of steps that are taken again are ended, and their results removed."""
    suites = make(every=10)
    suites.start()
    for step in (10, 20):
        suites.save(step)
        suites.answer()
    suites.save(30)
    suites.handler.on_start(RolledBack(at(15).progress, 32, "a spike"))
    assert suites.process.running is None
    assert suites.process.steps == []
    assert [step for step, _ in suites.recorded] == [10]
    suites.save(20)
    assert suites.process.running == 20


def test_a_roll_back_leaves_earlier_checkpoints_alone(make):
    """An evaluation of a step that stays goes on."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.handler.on_start(RolledBack(at(10).progress, 12, "a spike"))
    assert suites.process.started == [10]
    suites.answer()
    assert [step for step, _ in suites.recorded] == [10]


def test_what_is_missing_is_told_once(make):
    """Without the package nothing is started, and the run hears of it at its start alone."""
    suites = make(every=10, process=Process(obstacle="install it"))
    suites.start()
    suites.handler.on_start(RolledBack(at(5).progress, 12, "a spike"))
    for step in (10, 20):
        suites.save(step)
    suites.save(25, SaveReason.FINAL)
    suites.end(25)
    assert suites.published == [SuiteFailed(0, "install it")]
    assert suites.process.started == suites.process.steps == []


def test_a_failed_run_ends_the_process(make):
    """The checkpoint of a failure is not evaluated, and no process outlives the run."""
    suites = make(every=10)
    suites.start()
    suites.save(10)
    suites.handler.on_failure(RunFailed(at(12).progress, ValueError()))
    suites.save(20, SaveReason.EXCEPTION)
    assert suites.process.running is None
    assert suites.process.started == [10]
    assert suites.process.steps == [10]
