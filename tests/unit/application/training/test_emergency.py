"""What becomes of a run whose phases fail, or are interrupted by a wish to stop, in this process."""

import threading
from functools import cache

import pytest
from typing_extensions import override

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.domain.commands import SaveReason, StopRun
from holdfast.domain.errors import LeaveAtOnce
from holdfast.domain.events import CheckpointSaved, EvaluationCompleted, RunFailed, RunStarted, StepCompleted
from holdfast.domain.fault_tolerance.restart_policy import GracePeriod
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from tests.support.loop import CORPUS, Loop
from tests.support.streams import Plan

STEPS = 8


class Panic(BaseException):
    """What a library in Rust raises."""


ERRORS = [RuntimeError, MemoryError, SystemExit, Panic]


class FaultySource(ForwardingDataSource):
    """Reads as documents in memory do; once it is armed, something happens before the next document is given."""

    def __init__(self, happen):
        super().__init__(MemoryDataSource(CORPUS))
        self.happen = happen
        self.is_armed = False

    def arm(self):
        """Have it happen."""
        self.is_armed = True

    @override
    def read(self, unit, start=None):
        for document in super().read(unit, start):
            if self.is_armed:
                self.is_armed = False
                self.happen()
            yield document


def settings(source=None):
    """Return the arguments of the run that is disturbed: it reads ahead, and measures and saves at times."""
    plan = Plan("stream", prefetch=1, window=20)
    more = {} if source is None else {"source": source}
    return {"plan": plan, "save_every": 3, "evaluate_every": 2, "micro_batch": 2, **more}


@cache
def undisturbed():
    """Return what a run that nothing disturbs ends with, and the rows of its steps."""
    loop = Loop(**settings())
    loop.run()
    return loop.state, loop.rows


def in_data(happen):
    """Have it happen while a document is read ahead, in the middle of training."""
    source = FaultySource(happen)
    loop = Loop(**settings(source))
    loop.at_step(4, source.arm)
    return loop


def in_part(number, happen, **more):
    """Have it happen before micro-batch ``number`` of the fifth step."""
    loop, parts = Loop(**settings(), **more), []

    def before_part(step, _):
        parts.append(step)
        if step == 5 and parts.count(5) == number:
            happen()

    loop.trainable.before_part = before_part
    return loop


def in_forward(happen, **more):
    """Have it happen before the first micro-batch of a step."""
    return in_part(1, happen, **more)


def in_backward(happen):
    """Have it happen between the micro-batches of a step."""
    return in_part(2, happen)


def in_evaluation(happen):
    """Have it happen in the middle of an evaluation."""
    loop, seen = Loop(**settings()), []
    loop.trainable.before_evaluation = lambda _: seen.append(0) or (happen() if len(seen) == 3 else None)
    return loop


def in_capture(happen):
    """Have it happen while a periodic save copies the state."""
    loop = Loop(**settings())
    capture, seen = loop.trainable.capture, []

    def captured(*, copy):
        seen.append(0)
        if len(seen) == 1:
            happen()
        return capture(copy=copy)

    loop.trainable.capture = captured
    return loop


def in_handler(happen):
    """Have it happen in a handler of a step, as those of monitors are."""
    loop = Loop(**settings())
    loop.at_step(5, happen)
    return loop


PHASES = [in_data, in_forward, in_backward, in_evaluation, in_capture, in_handler]


def assert_goes_on_to_the_same_end(loop):
    """Check that the last complete step of ``loop`` is durable, and that the next process ends as undisturbed."""
    last = loop.published(StepCompleted)[-1].progress
    assert loop.store.list()[-1].progress == last
    again = Loop(loop.store, **settings())
    assert again.run().step == STEPS
    state, rows = undisturbed()
    assert again.published(RunStarted)[0].progress == last
    assert (again.state, loop.rows | again.rows) == (state, rows)


def raising(error):
    """Return what raises ``error``."""

    def happen():
        raise error

    return happen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a worker tells its panic too
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("phase", PHASES)
def test_an_error_in_any_phase_keeps_the_last_step(phase, error):
    """Whatever is raised, wherever, the last complete step is durable, and the resumed run ends the same to the bit."""
    loop = phase(raising(error))
    if phase is in_handler and issubclass(error, Exception):  # an event bus keeps those from the loop
        loop.run()
    else:
        with pytest.raises(error):
            loop.run()
        assert isinstance(loop.published(RunFailed)[0].error, error)
    assert_goes_on_to_the_same_end(loop)


@pytest.mark.parametrize("number", [2, 10, 15])
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_saves_and_stops(phase, number):
    """A signal that comes in any phase ends the run at that step boundary with a checkpoint, and nothing is lost."""
    loop = phase(lambda: loop.inbox.post(StopRun("a signal", number)))
    assert loop.run().step < STEPS
    assert loop.train.stopped_by == StopRun("a signal", number)
    assert loop.published(CheckpointSaved)[-1].reason in {SaveReason.PREEMPT, SaveReason.PERIODIC}
    assert_goes_on_to_the_same_end(loop)


def test_a_save_that_fails_for_good_hides_no_error():
    """Where the disk takes nothing more, the first error is raised and what was durable before is what is there."""
    loop = in_forward(raising(ZeroDivisionError))
    save, seen = loop.store.save, []

    def refuse(snapshot):
        seen.append(snapshot.progress.step)
        if len(seen) > 1:
            msg = "no space left"
            raise OSError(28, msg)
        return save(snapshot)

    loop.store.save = refuse
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert (seen, [info.progress.step for info in loop.store.list()]) == ([3, 4], [3])


@pytest.mark.parametrize("error", [LeaveAtOnce, KeyboardInterrupt])
def test_who_leaves_at_once_saves_nothing_more(error):
    """A second signal, and Ctrl-C in a host that handles no signals, end the run where it is."""
    loop = in_forward(raising(error))
    with pytest.raises(error):
        loop.run()
    assert [info.progress.step for info in loop.store.list()] == [3]
    assert not loop.published(RunFailed)


def test_a_stop_does_not_wait_for_data(monkeypatch):
    """Where reading hangs, a wish to stop ends the run with a checkpoint of its last step, and hardly waits to read."""
    monkeypatch.setattr("holdfast.application.data.prefetch._PATIENCE_SECONDS", 10_000.0)
    hangs, may_go_on = threading.Event(), threading.Event()
    loop = in_data(lambda: hangs.set() or may_go_on.wait(10_000))
    asker = threading.Thread(target=lambda: hangs.wait(60) and loop.inbox.post(StopRun("a signal", 15)))
    asker.start()
    assert 0 < loop.run().step < STEPS
    may_go_on.set()
    asker.join()
    assert_goes_on_to_the_same_end(loop)


@pytest.mark.parametrize(("grace", "step"), [(0.0, 4), (1000.0, 5)])
def test_a_step_that_takes_too_long_gives_way_to_the_save(grace, step):
    """Behind half the grace period a step is left between two micro-batches, and the one before it is saved."""
    loop = in_forward(lambda: loop.inbox.post(StopRun("a signal", 15)), grace=GracePeriod(grace))
    assert loop.run().step == step
    assert_goes_on_to_the_same_end(loop)


def test_a_stop_of_a_host_has_no_grace_period():
    """A step that a host asks to stop in is completed, however long it takes."""
    loop = in_forward(lambda: loop.inbox.post(StopRun("the host asks")))
    assert loop.run().step == 5
    assert_goes_on_to_the_same_end(loop)


def test_an_evaluation_is_cut_short():
    """An evaluation does not keep a signal's save waiting: its figures are left out."""
    loop = in_evaluation(lambda: loop.inbox.post(StopRun("a signal", 15)))
    end = loop.run()
    assert end not in [event.progress for event in loop.published(EvaluationCompleted)]
    assert_goes_on_to_the_same_end(loop)
