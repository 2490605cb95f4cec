import math
import threading
from contextlib import closing

import pytest

from holdfast.adapters.monitor.memory import MemoryMonitor, MemoryTracker
from holdfast.application.handlers.monitor_thread import MonitorThread
from holdfast.application.handlers.record_metrics import MonitorLimits, RecordMetrics
from holdfast.domain.errors import TrainingError
from holdfast.domain.events import (
    CheckpointStarted,
    DataEnded,
    EvaluationCompleted,
    HandlerFailed,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    SuiteEvaluated,
    TextGenerated,
)
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.step_outcome import Evaluation
from holdfast.domain.training.text_generation import GeneratedText
from holdfast.ports.monitor import EndState, Monitor, NoteKind, RunDescription
from holdfast.ports.optimizer import Hardware
from tests.support.events import EXAMPLES, PROGRESS, at
from tests.support.loop import Loop


class Device:
    """Stands for a trainable on some hardware."""

    def __init__(self, peak_flops, flops_per_token=60.0):
        self.hardware = Hardware("device", "bf16", 10, flops_per_token=flops_per_token, peak_flops=peak_flops)

    memory_retries = 0

    def memory_bytes(self):
        return 12345


def record(monitor, reaction, event, device, **options):
    """Let the metrics of ``event`` be recorded, and return when they are."""
    with closing(RecordMetrics([MonitorThread("memory", monitor)], device, **options)) as recorder:
        getattr(recorder, reaction)(event)


@pytest.mark.parametrize("known", [(None, 60.0), (60_000.0, None), (60_000.0, 60.0)])
def test_the_figures_of_a_step_reach_the_monitor(known):
    """A monitor gets loss, rate, speed, data and memory of each step, and MFU where peak and arithmetic are known."""
    monitor = MemoryMonitor()
    record(monitor, "on_step", EXAMPLES[1], Device(*known))
    expected = {
        "tokens": 700,
        "loss": 2.0,
        "lr": 0.1,
        "grad_norm": 1.5,
        "tokens_per_second": 100.0,
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
    assert metrics == pytest.approx(expected | ({"mfu": 0.1} if all(known) else {}))


def test_the_speed_does_not_depend_on_the_thread_that_records_it():
    """A loss that is known when a step ends gives the same speed, however late its figures are recorded."""
    monitor, completed = MemoryMonitor(), iter([10.0, 11.0, 12.0])
    gate = threading.Event()
    with closing(
        RecordMetrics([MonitorThread("memory", monitor)], Device(None), clock=lambda: next(completed))
    ) as each:
        each._thread.submit(lambda: gate.wait(60))  # the thread is busy, and records all steps at once
        for _ in range(3):
            each.on_step(EXAMPLES[1])
        gate.set()
    assert [metrics["tokens_per_second"] for _, metrics in monitor.records] == pytest.approx([100.0] * 3)


def test_the_figures_of_an_evaluation_reach_the_monitor():
    """A monitor gets loss and bits a byte of each evaluation, apart from those of training."""
    monitor = MemoryMonitor()
    record(monitor, "on_evaluation", EXAMPLES[4], Device(None))
    ((step, metrics),) = monitor.records
    assert (step, metrics["tokens"], metrics["eval_loss"]) == (7, 700, 2.0)
    assert metrics["eval_bits_per_byte"] == pytest.approx(8 / math.log(2) / 16)


def test_the_parts_of_an_evaluation_have_names_of_their_own():
    """Sources and sets are figures with their names behind those of the whole."""
    monitor = MemoryMonitor()
    parts = {"songs": Evaluation(6.0, 2, 8), "rules": Evaluation(2.0, 2, 8)}
    record(monitor, "on_evaluation", EvaluationCompleted(PROGRESS, Evaluation(8.0, 4, 16, parts)), Device(None))
    ((_, metrics),) = monitor.records
    assert (metrics["eval_loss"], metrics["eval_loss/songs"], metrics["eval_loss/rules"]) == (2.0, 3.0, 1.0)
    assert metrics["eval_bits_per_byte/songs"] == pytest.approx(6 / math.log(2) / 8)
    assert len(metrics) == 7


def test_the_results_of_suites_reach_the_monitor():
    """Results are figures of the step of their checkpoint, whatever step training has reached."""
    monitor = MemoryMonitor()
    record(monitor, "on_suite", SuiteEvaluated(3, {"arc": {"acc": 0.25}, "piqa": {"acc": 0.5}}, 9.0), Device(None))
    assert monitor.records == [(3, {"suite/arc/acc": 0.25, "suite/piqa/acc": 0.5})]


def test_every_step_stands_once_in_the_figures_of_a_resumed_run():
    """A run that is taken up again at an earlier step makes the monitor forget the later ones."""

    class Lasting(MemoryMonitor):
        def close(self):
            pass

    monitor = Lasting()
    first = Loop(save_every=3)
    first.at_step(5, lambda: setattr(first.trainable, "before_part", interrupt))

    def interrupt(step, part):
        raise KeyboardInterrupt

    with closing(RecordMetrics([MonitorThread("memory", monitor)], first.trainable)) as recorder:
        first.bus.subscribe(StepCompleted, recorder.on_step)
        with pytest.raises(KeyboardInterrupt):
            first.run()
    second = Loop(first.store)
    with closing(RecordMetrics([MonitorThread("memory", monitor)], second.trainable)) as recorder:
        second.bus.subscribe(RunStarted, recorder.on_start)
        second.bus.subscribe(StepCompleted, recorder.on_step)
        second.run()
    assert [step for step, _ in monitor.records] == list(range(1, 9))


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
    """Figures reach the monitors behind a broken one, and each failure is raised at a later event all the same."""
    monitor = MemoryMonitor()
    named = {"first": BrokenMonitor(), "memory": monitor, "last": BrokenMonitor()}
    recorder = RecordMetrics([MonitorThread(name, each) for name, each in named.items()], Device(None))
    recorder.on_step(EXAMPLES[1])
    for name in ("first", "last"):
        with pytest.raises(TrainingError, match=f"the monitor {name} failed: OSError: {GONE}"):
            recorder.on_checkpoint(EXAMPLES[9])
    recorder.on_checkpoint(EXAMPLES[9])
    recorder.close()
    assert len(monitor.records) == 1


class SlowMonitor(MemoryMonitor):
    """A monitor that takes records only while it is let."""

    def __init__(self):
        super().__init__()
        self.let = threading.Event()

    def record(self, step, metrics):
        assert self.let.wait(60)
        super().record(step, metrics)


def test_the_loop_waits_for_monitors_before_a_checkpoint_and_never_at_a_step():
    """A slow monitor holds up no step; before state is captured it has every figure so far."""
    monitor = SlowMonitor()
    recorder = RecordMetrics([MonitorThread("memory", monitor)], Device(None))
    for number in range(1, 101):
        recorder.on_step(at(number))
    assert not monitor.records
    threading.Timer(0.05, monitor.let.set).start()
    recorder.on_checkpoint(EXAMPLES[-2])
    assert [step for step, _ in monitor.records] == list(range(1, 101))
    recorder.close()


def test_monitors_that_hang_keep_no_checkpoint_from_being_made():
    """A wait for monitors in vain is told as ``HandlerFailed``; the checkpoint is made, and the run ends well."""
    monitor, loop = SlowMonitor(), Loop(budget=Budget(steps=2))
    with closing(
        RecordMetrics([MonitorThread("memory", monitor)], loop.trainable, limits=MonitorLimits(patience_seconds=0.05))
    ) as recorder:
        loop.bus.subscribe(StepCompleted, recorder.on_step)
        loop.bus.subscribe(CheckpointStarted, recorder.on_checkpoint)
        assert loop.run().step == 2
        monitor.let.set()
    assert loop.story[-4:] == ["CheckpointStarted", "HandlerFailed", "CheckpointSaved", "RunFinished"]
    (failure,) = loop.published(HandlerFailed)
    assert "did not answer within" in str(failure.error)  # the monitor, or on a busy machine the thread that serves it
    assert [info.progress.step for info in loop.store.list()] == [2]


class SlowDevice(Device):
    """Stands for a trainable whose memory is told late, as a device tells its loss."""

    def __init__(self):
        super().__init__(None)
        self.let = threading.Event()

    def memory_bytes(self):
        assert self.let.wait(60)
        return super().memory_bytes()


def test_figures_are_dropped_before_they_fill_the_memory():
    """Behind too many steps figures are dropped, which is said once, and taken when the device has caught up."""
    monitor, device = MemoryMonitor(), SlowDevice()
    recorder = RecordMetrics([MonitorThread("memory", monitor)], device, limits=MonitorLimits(most_waiting=3))
    complaints = []
    for number in range(1, 9):
        try:
            recorder.on_step(at(number))
        except TrainingError as error:
            complaints.append(str(error))
    device.let.set()
    recorder.on_checkpoint(EXAMPLES[-2])
    recorder.on_step(at(20))
    recorder.close()
    steps = [step for step, _ in monitor.records]
    assert len(complaints) in {1, 2}
    assert 3 <= len(steps) <= 5
    assert steps[-1] == 20


def begun(tracker, folder):
    """Return the thread of a tracker that has begun."""
    thread = MonitorThread("tracker", tracker)
    thread.begin(RunDescription("id", "name", folder))
    return thread


def test_a_tracker_learns_of_events_and_of_the_end(tmp_path):
    """A tracker gets the sentence of each event with the last step, and how the run ends."""
    tracker = MemoryTracker()
    recorder = RecordMetrics(
        [begun(tracker, tmp_path)], Device(None), sentence_of=lambda event: f"a {type(event).__name__}"
    )
    recorder.on_step(at(4))
    recorder.on_event(EXAMPLES[1])
    recorder.on_stop(StopRequested(at(4).progress, "enough", None))
    recorder.on_end(RunFinished(at(4).progress))
    recorder.close()
    assert tracker.notes == [(4, NoteKind.EVENT, "a StepCompleted")]
    assert tracker.end is EndState.STOPPED


@pytest.mark.parametrize(
    ("stops", "state"),
    [
        (["on_data_end", "on_stop"], EndState.FINISHED),
        (["on_stop"], EndState.STOPPED),
        ([], EndState.FINISHED),
    ],
)
def test_the_end_of_the_data_is_the_end_of_the_run(tmp_path, stops, state):
    """A tracker learns that a run has finished if its data have ended, and that it was stopped if a person did."""
    tracker = MemoryTracker()
    recorder = RecordMetrics([begun(tracker, tmp_path)], Device(None))
    events = {"on_data_end": DataEnded(at(4).progress), "on_stop": StopRequested(at(4).progress, "enough", None)}
    for name in stops:
        getattr(recorder, name)(events[name])
    recorder.on_end(RunFinished(at(4).progress))
    recorder.close()
    assert tracker.end is state


def test_the_end_is_the_last_that_a_tracker_learns(tmp_path):
    """Events and the checkpoint that follow the failure of a run reach a tracker before its end state."""
    story = []

    class Telling(MemoryTracker):
        def note(self, step, kind, text):
            story.append(text)

        def finish(self, state):
            story.append(state)

    recorder = RecordMetrics(
        [begun(Telling(), tmp_path)], Device(None), sentence_of=lambda event: f"a {type(event).__name__}"
    )
    failure = RunFailed(at(4).progress, RuntimeError("no"))
    recorder.on_end(failure)
    recorder.on_event(failure)
    recorder.close()
    assert story == ["a RunFailed", EndState.FAILED]


def test_a_tracker_forgets_later_steps_although_a_monitor_hangs(tmp_path):
    """A roll-back that waits in vain for a monitor still removes the steps after it from each tracker."""
    monitor, tracker = SlowMonitor(), MemoryTracker()
    recorder = RecordMetrics(
        [MonitorThread("slow", monitor), begun(tracker, tmp_path)],
        Device(None),
        limits=MonitorLimits(patience_seconds=0.2),
    )
    for number in (3, 4, 5):
        recorder.on_step(at(number))
    with pytest.raises(TrainingError, match="did not answer"):
        recorder.on_start(RolledBack(at(3).progress, 5, "the loss jumped"))
    monitor.let.set()
    recorder.close()
    assert [step for step, _ in tracker.records] == [3]


def test_a_tracker_gets_the_texts_of_samples(tmp_path):
    """Each text is a note with its prompt, of the step of its evaluation."""
    tracker = MemoryTracker()
    recorder = RecordMetrics([begun(tracker, tmp_path)], Device(None))
    recorder.on_step(at(4))
    recorder.on_event(TextGenerated(at(4).progress, [GeneratedText("Row,", " row", 0), GeneratedText("Ah", "!", 1)]))
    recorder.close()
    assert tracker.notes == [(4, NoteKind.SAMPLE, "Row, row"), (4, NoteKind.SAMPLE, "Ah!")]


def test_a_tracker_without_an_answer_holds_up_no_checkpoint(tmp_path):
    """A checkpoint and the end of a run wait for other monitors only; what the tracker lacks is reported at close."""

    class Silent(MemoryTracker):
        def record(self, step, metrics):
            threading.Event().wait(60)

    reports = []
    recorder = RecordMetrics(
        [begun(Silent(), tmp_path)], Device(None), report=reports.append, limits=MonitorLimits(patience_seconds=0.2)
    )
    recorder.on_step(at(4))
    recorder.on_checkpoint(EXAMPLES[9])
    recorder.on_end(RunFinished(at(4).progress))
    recorder.close()
    assert reports == [
        "the monitor tracker did not take its last metrics within 0 s; the next start of this run sends them again"
    ]
