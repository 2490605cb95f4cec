import math
import threading
from contextlib import closing

import pytest

from holdfast.adapters.monitor.memory import MemoryMonitor
from holdfast.application.handlers import record_metrics
from holdfast.application.handlers.record_metrics import RecordMetrics
from holdfast.domain.errors import TrainingError
from holdfast.domain.events import (
    CheckpointStarted,
    HandlerFailed,
    RunStarted,
    StepCompleted,
)
from holdfast.domain.training.budget import Budget
from holdfast.ports.monitor import Monitor
from holdfast.ports.optimizer import Hardware
from tests.support.events import EXAMPLES, at
from tests.support.loop import Loop


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
