import json
import threading

import numpy as np
import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.domain.commands import Evaluate, SaveCheckpoint, SaveReason, SplitBatch, StopRun
from holdfast.domain.errors import OutOfMemory, StateError
from holdfast.domain.events import (
    BatchSplit,
    CheckpointSaved,
    EvaluationCompleted,
    EvaluationProgressed,
    Event,
    HandlerFailed,
    MemoryExhausted,
    RunFailed,
    RunFinished,
    StepCompleted,
    StopRequested,
    UpdateDropped,
)
from holdfast.domain.training.budget import Budget
from holdfast.ports.forwarding.process_group import ForwardingProcessGroup
from tests.support.loop import CORPUS, TOKENIZER, Loop
from tests.support.streams import NOTHING_HELD_OUT, Plan


@pytest.fixture(scope="module")
def undisturbed():
    """Return a run of eight steps that nothing disturbed."""
    loop = Loop()
    loop.run()
    return loop


def test_training_lowers_the_loss(undisturbed):
    """The loop trains: later batches of the same documents cost less."""
    assert undisturbed.losses[-3:].mean() < undisturbed.losses[0] - 0.5


def test_events_come_in_their_documented_order():
    """A run with a shortage of memory, evaluations and checkpoints tells its story in the order of the docstring."""
    loop = Loop(budget=Budget(steps=4), max_rows=2, save_every=2, evaluate_every=2, evaluate_at_start=True)
    loop.run()
    step = ["StepCompleted"]
    due = ["StepCompleted", "EvaluationCompleted", "CheckpointStarted", "CheckpointSaved"]
    assert [name for name in loop.story if name != "EvaluationProgressed"] == [
        *("RunStarted", "EvaluationCompleted", "MemoryExhausted", "BatchSplit", "ContractWeakened"),
        *(step + due + step + due),
        "RunFinished",
    ]
    assert [event.reason for event in loop.published(CheckpointSaved)] == [SaveReason.PERIODIC, SaveReason.FINAL]
    assert [event.progress.step for event in loop.published(EvaluationCompleted)] == [0, 2, 4]


@pytest.mark.parametrize("prefetch", [0, 4])
def test_each_step_tells_what_was_read_of_the_data(prefetch):
    """The event of a step says how many bytes and records the data had given, and refused, when its batch came."""
    source = MemoryDataSource(CORPUS | {"spoilt": ["before", 5, "behind"]})
    plan = Plan("stream", prefetch=prefetch, window=20)
    loop = Loop(source=source, plan=plan, holdout=NOTHING_HELD_OUT, rejections=RejectedRecords("skip"), max_rows=2)
    loop.run()
    supplies = [event.outcome.supply for event in loop.published(StepCompleted)]
    told = [supply.bytes_read for supply in supplies]
    assert len(told) == 8
    assert 0 < told[0] < told[-1] <= source.bytes_read
    assert told == sorted(told)
    assert supplies[-1].rejected == loop.rejections.count == 1


def test_a_step_without_targets_passes_and_is_no_drop():
    """Batches whose tokens are all masked take their place in data and budget, without loss, update or roll-back."""
    talk = MemoryDataSource({"talk": ["quiet " * 5 + "LOUD", "so it is, " * 4 + "OH"]})
    encoder = MemoryDocumentEncoder(
        TOKENIZER, untrained=[*range(ord("a"), ord("z") + 1), *b", ", TOKENIZER.end_of_text]
    )
    loop = Loop(source=talk, plan=Plan(rows=1, encoder=encoder), holdout=NOTHING_HELD_OUT, budget=Budget(steps=40))
    progress = loop.run()
    idle = {event.progress.step for event in loop.published(StepCompleted) if np.isnan(event.outcome.loss)}
    assert 20 < len(idle) < 40
    assert set(loop.rows) == set(range(1, 41)) - idle
    assert (progress.step, progress.cursor.samples, progress.health.dropped) == (40, 40, 0)
    assert progress.tokens == sum(event.outcome.num_tokens for event in loop.published(StepCompleted))
    assert loop.published(UpdateDropped) == []
    assert None not in progress.health.losses


def test_a_token_budget_ends_the_run_at_the_step_that_reaches_it():
    """A run with a budget in tokens trains up to the budget, and at most a batch beyond."""
    loop = Loop(budget=Budget(tokens=100))
    progress = loop.run()
    assert progress.step == 4  # at most 32 tokens a batch, and a few of padding
    assert 100 <= progress.tokens <= 128
    assert [event.reason for event in loop.published(CheckpointSaved)] == [SaveReason.FINAL]


def test_the_budget_reached_first_ends_the_run():
    """Of a budget in steps and one in tokens the first to be reached counts."""
    assert Loop(budget=Budget(steps=2, tokens=10**9)).run().step == 2
    assert Loop(budget=Budget(steps=100, tokens=33)).run().step == 2


@pytest.mark.parametrize("max_rows", [1, 2, 3])
@pytest.mark.parametrize("step", range(1, 9))
def test_a_shortage_of_memory_changes_no_result(step, max_rows, undisturbed):
    """A run short of memory from any step on halves its micro-batches and trains on the same batches."""

    def before_part(number, part):
        if number >= step and part.num_rows > max_rows:
            msg = "no room"
            raise OutOfMemory(msg)

    loop = Loop()
    loop.trainable.before_part = before_part
    loop.run()
    np.testing.assert_allclose(loop.losses, undisturbed.losses, rtol=0, atol=1e-12)
    assert loop.rows == undisturbed.rows
    assert [event.micro_batch for event in loop.published(BatchSplit)] == ([2] if max_rows > 1 else [2, 1])


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_shortage_at_one_row_ends_the_run_after_a_save(step, prefetch):
    """If not even one row fits, the last complete step is durable and the shortage is what the caller gets."""

    def before_part(number, part):
        if number == step:
            msg = "no room at all"
            raise OutOfMemory(msg)

    plan = Plan(prefetch=prefetch)
    loop = Loop(plan=plan)
    loop.trainable.before_part = before_part
    with pytest.raises(OutOfMemory, match="1 rows: no room at all"):
        loop.run()
    assert [event.micro_batch for event in loop.published(MemoryExhausted)] == [4, 2, 1]
    saved = ["RunFailed", "CheckpointStarted", "CheckpointSaved"]
    assert loop.story[-3:] == (saved if step > 1 else ["BatchSplit", "MemoryExhausted", "RunFailed"])
    assert [info.progress.step for info in loop.store.list()] == ([step - 1] if step > 1 else [])


def test_a_shortage_that_nobody_answers_ends_the_run():
    """Without a handler that splits the batch the shortage is the run's error, and nothing is tried for ever."""
    loop = Loop(max_rows=1)
    loop.bus.subscribe(MemoryExhausted, lambda _: loop.inbox.drain())
    with pytest.raises(OutOfMemory, match="4 rows"):
        loop.run()
    assert loop.story == ["RunStarted", "MemoryExhausted", "RunFailed"]


def test_a_shortage_tells_how_many_rows_were_tried():
    """A batch with fewer rows than a micro-batch is split from its own size on, and not tried again whole."""
    loop = Loop(plan=Plan(), micro_batch=16, max_rows=2)
    loop.run()
    assert [event.micro_batch for event in loop.published(MemoryExhausted)] == [4]
    assert [event.micro_batch for event in loop.published(BatchSplit)] == [2]


def test_an_answer_that_does_not_help_ends_the_run():
    """Commands that leave the micro-batch as it is do not make the loop try the same batch for ever."""
    loop = Loop(max_rows=1, micro_batch=1)
    loop.trainable.before_part = lambda *_: (_ for _ in ()).throw(OutOfMemory("no room"))
    loop.inbox.post(Evaluate())
    once = [SaveCheckpoint()]
    loop.bus.subscribe(MemoryExhausted, lambda _: loop.inbox.post(once.pop()) if once else None)
    with pytest.raises(OutOfMemory):
        loop.run()
    assert len(loop.published(MemoryExhausted)) == 2


def test_failing_handlers_do_not_stop_training(undisturbed):
    """A handler that raises is reported, for every event, and the run ends as it would have."""

    def fail(event):
        raise ValueError(event)

    loop = Loop()
    loop.bus.subscribe(Event, fail)
    loop.run()
    assert loop.state == undisturbed.state
    assert len(loop.published(HandlerFailed)) == len(undisturbed.story)
    assert loop.published(RunFinished)


def test_a_stop_from_another_thread_ends_the_run():
    """A host may ask a run to stop at any time from any thread; it ends at the next step boundary, saved."""
    loop = Loop(budget=Budget(steps=100_000))
    trained = threading.Event()
    loop.at_step(3, trained.set)

    def ask():
        trained.wait(60)
        loop.inbox.post(StopRun("the host asked"))

    host = threading.Thread(target=ask)
    host.start()
    progress = loop.run()
    host.join()
    assert 3 <= progress.step < 100_000
    assert loop.train.stopped_by == StopRun("the host asked")
    assert [info.progress for info in loop.store.list()] == [progress]
    assert loop.story[-4:] == ["StopRequested", "CheckpointStarted", "CheckpointSaved", "RunFinished"]


def test_a_stop_during_an_evaluation_gives_the_evaluation_up():
    """A stop does not wait for the held-out documents to be measured."""
    loop = Loop(plan=Plan(rows=1), evaluate_every=2)
    loop.trainable.before_evaluation = lambda _: loop.inbox.post(StopRun("enough", signal=15))
    progress = loop.run()
    assert progress.step == 2
    assert not loop.published(EvaluationCompleted)
    assert [event.reason for event in loop.published(CheckpointSaved)] == [SaveReason.PREEMPT]


def test_an_evaluation_tells_how_far_it_is():
    """The first event comes before anything is measured, the next ones at most once a second."""
    loop = Loop(plan=Plan(rows=1), evaluate_every=2)
    loop.run()
    first, *_ = loop.published(EvaluationProgressed)
    assert (first.progress.step, first.name, first.done) == (2, "", 0)
    assert first.total > 0
    [*before, _] = loop.story[: loop.story.index("EvaluationCompleted") + 1]
    assert before[-1] == "EvaluationProgressed"


def test_a_stop_before_the_first_step_trains_nothing():
    """A run that is asked to stop before it starts ends without a step or a checkpoint."""
    loop = Loop()
    loop.inbox.post(StopRun("at once"))
    assert loop.run().step == 0
    assert loop.story == ["RunStarted", "StopRequested", "RunFinished"]


def test_commands_that_answer_commands_are_obeyed_before_the_end():
    """What handlers order in answer to a stop, and in answer to that, is done before the run ends."""
    loop = Loop()
    loop.bus.subscribe(CheckpointSaved, lambda _: loop.inbox.post(SplitBatch(1)))
    loop.at_step(2, lambda: loop.inbox.post(StopRun("enough")))
    loop.run()
    story = ["StopRequested", "CheckpointStarted", "CheckpointSaved", "BatchSplit", "ContractWeakened", "RunFinished"]
    assert loop.story[-6:] == story


def test_a_step_is_saved_once():
    """A save that is due at the step at which the run is stopped is not written twice."""
    loop = Loop(save_every=2)
    loop.at_step(2, lambda: loop.inbox.post(StopRun("enough")))
    loop.run()
    assert [(event.progress.step, event.reason) for event in loop.published(CheckpointSaved)] == [
        (2, SaveReason.PERIODIC)
    ]


def test_a_failed_save_ends_the_run():
    """A command's error is the run's error: a run that cannot save says so."""
    loop = Loop(save_every=3)
    loop.at_step(3, lambda: setattr(loop.trainable, "capture", refuse))

    def refuse(**_):
        msg = "nothing can be captured"
        raise StateError(msg)

    with pytest.raises(StateError, match="nothing can be captured"):
        loop.run()
    assert loop.published(RunFailed)[0].progress.step == 3
    assert not loop.published(RunFinished)


def test_the_first_error_is_the_one_that_is_raised():
    """An emergency save that fails too does not hide why the run failed."""
    loop = Loop()

    def break_everything(step, part):
        if step == 3:
            loop.trainable.capture = lambda **_: (_ for _ in ()).throw(StateError("no capture"))
            raise ZeroDivisionError

    loop.trainable.before_part = break_everything
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert [str(event.error) for event in loop.published(HandlerFailed)] == ["no capture"]


class LateProcessGroup(ForwardingProcessGroup):
    """Returns commands one call late, as the port allows."""

    def __init__(self):
        super().__init__(SingleProcessGroup())
        self.late = ()

    def agree(self, commands):
        returned, self.late = self.late, tuple(commands)
        return returned


@pytest.mark.parametrize("group", [SingleProcessGroup, LateProcessGroup])
def test_the_last_commands_are_obeyed_however_late_the_group_returns_them(group, undisturbed):
    """A group that returns commands at its next call delays them and loses none, not even those of the last step."""
    loop = Loop(evaluate_every=8, max_rows=2, group=group())
    loop.run()
    assert [event.progress.step for event in loop.published(CheckpointSaved)] == [8]
    assert [event.progress.step for event in loop.published(EvaluationCompleted)] == [8]
    assert loop.rows == undisturbed.rows


def test_a_stop_through_a_late_group_saves():
    """A run that is stopped through a group that returns commands late ends with a checkpoint."""
    loop = Loop(group=LateProcessGroup())
    loop.at_step(3, lambda: loop.inbox.post(StopRun("enough")))
    progress = loop.run()
    assert len(loop.published(StopRequested)) == 1
    assert [info.progress for info in loop.store.list()] == [progress]


def test_a_failing_flush_fails_the_run():
    """A run whose saves turn out not to be durable at the end has failed, and says so."""
    loop = Loop()
    loop.store.flush = lambda: (_ for _ in ()).throw(StateError("the disk is gone"))
    with pytest.raises(StateError, match="the disk is gone"):
        loop.run()
    assert loop.published(RunFailed)
    assert not loop.published(RunFinished)


def test_learning_rates_follow_the_schedule(undisturbed):
    """Each step is taken at the rate that the schedule gives for the progress before it."""
    rates = [event.outcome.learning_rate for event in undisturbed.published(StepCompleted)]
    assert rates[:3] == pytest.approx([5 / 3, 10 / 3, 5.0])
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_a_run_leaves_no_thread_behind():
    """Batches that were made ahead end with the run, whether it ends well or not."""
    before, plan = set(threading.enumerate()), Plan(prefetch=4)
    Loop(plan=plan).run()
    failing = Loop(plan=plan)
    failing.trainable.before_part = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        failing.run()
    assert set(threading.enumerate()) <= before


def test_a_checkpoint_holds_the_tokenizer_too():
    """Whatever goes into each checkpoint beside the model lies in its folder."""
    loop = Loop()
    loop.run()
    assert json.loads((loop.store.load().folder / "tokenizer.json").read_text())
