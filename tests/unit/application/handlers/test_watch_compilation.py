from contextlib import closing
from dataclasses import dataclass

import pytest

from holdfast.adapters.monitor.memory import MemoryMonitor
from holdfast.application.handlers.monitor_thread import MonitorThread
from holdfast.application.handlers.profile_steps import WatchCompilation
from holdfast.application.handlers.record_metrics import RecordMetrics
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.events import RunFinished, StepCompleted
from holdfast.domain.training.step_outcome import Progress, StepOutcome
from tests.support.loop import Loop

OUTCOME = StepOutcome(
    losses=[1.0], num_targets=1, num_tokens=1, grad_norm=1.0, learning_rate=0.1, micro_batch=1, step_seconds=0.1
)


@dataclass
class Counted:
    graphs: int = 0
    recompiles: int = 0
    seconds: float = 0.0

    def compile(self, again=0):
        self.graphs += 1
        self.recompiles += again
        self.seconds += 1.5


def completed(step):
    return StepCompleted(Progress(step, step, Cursor(step)), OUTCOME)


def said_over(compiles):
    """Return what is said by step, for a run whose steps ``compiles`` compile (again, if the first did)."""
    counted, said = Counted(), {}
    watch = WatchCompilation(counted, lambda line: said.setdefault(step, line))
    for step in range(1, 9):
        if step in compiles:
            counted.compile(again=step > 1)
        watch(completed(step))
    return said


def test_warm_up_is_reported_when_it_is_over():
    """The first step that compiles nothing says how much was compiled before, and in how many seconds."""
    said = said_over({1, 2})
    assert list(said) == [3]
    assert "2 graphs were compiled in 3.0 s, within 2 steps" in said[3]


def test_compiling_again_is_warned_of_once():
    """A step behind warm-up that compiles again brings one warning, which says what to do; later ones none."""
    said = said_over({1, 4, 6, 7})
    assert list(said) == [2, 4]
    assert "model.compile=none" in said[4]


def test_each_step_s_compiling_is_a_figure():
    """The figures tell the seconds that a step compiled and how often code was compiled again so far."""
    counted, monitor = Counted(), MemoryMonitor()
    with closing(RecordMetrics([MonitorThread("memory", monitor)], Loop().trainable, counted)) as record:
        for step in range(1, 4):
            if step != 2:
                counted.compile(again=step > 1)
            record.on_step(completed(step))
        record.on_end(RunFinished(Progress(3, 3, Cursor(3))))
    figures = [(metrics["compile_seconds"], metrics["recompiles"]) for _, metrics in monitor.records]
    assert figures == [(pytest.approx(1.5), 0), (0.0, 0), (pytest.approx(1.5), 1)]
