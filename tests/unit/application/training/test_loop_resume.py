from functools import cache

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.domain.commands import SaveReason, StopRun
from holdfast.domain.errors import DataError, LeaveAtOnce
from holdfast.domain.events import CheckpointSaved, RunFailed, RunFinished, RunStarted, StepCompleted
from holdfast.domain.training.budget import Budget
from tests.support.loop import CORPUS, TOKENIZER, Loop
from tests.support.streams import MODES, NOTHING_HELD_OUT, Plan

STEPS = 8
PREFETCH = [0, 1, 4]


def plan_of(prefetch, mode):
    return Plan(mode, prefetch=prefetch)


@cache
def uninterrupted(mode):
    """Return state and rows of a run that nothing disturbed."""
    loop = Loop(plan=plan_of(0, mode))
    loop.run()
    return loop.state, loop.rows


def stop(loop, step):
    loop.at_step(step, lambda: loop.inbox.post(StopRun("a person asked", signal=15)))
    loop.run()


def fail(loop, step, error=ZeroDivisionError):
    def before_part(number, part):
        if number == step + 1:
            raise error

    loop.trainable.before_part = before_part
    with pytest.raises(error):
        loop.run()


def vanish(loop, step):
    """End the process without a chance to save: only periodic checkpoints are there."""
    fail(loop, step, LeaveAtOnce)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("interrupt", [stop, fail])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_run_resumes_at_every_step(step, interrupt, prefetch, mode):
    """A run that was stopped or that failed after any step ends, resumed, exactly as if nothing had happened."""
    first = Loop(plan=plan_of(prefetch, mode))
    interrupt(first, step)
    second = Loop(first.store, plan=plan_of(prefetch, mode))
    progress = second.run()
    assert second.published(RunStarted)[0].progress.step == step
    assert progress.step == STEPS
    assert (second.state, first.rows | second.rows) == uninterrupted(mode)


@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_signal_that_ends_what_a_step_waits_for_ends_the_run_as_any_signal(step):
    """A step whose compilers a signal to all processes has ended too is left to the next start, after a save."""
    loop = Loop()

    def before_part(number, _):
        if number == step + 1:
            loop.inbox.post(StopRun("received SIGINT", signal=2))
            message = "the compiler was killed\nand these are its many lines"
            raise ChildProcessError(message)

    loop.trainable.before_part = before_part
    assert loop.run().step == step
    assert not loop.published(RunFailed)
    second = Loop(loop.store)
    second.run()
    assert (second.state, loop.rows | second.rows) == uninterrupted("cache")


def test_an_error_without_a_signal_ends_the_run():
    """A request to stop that no signal made hides no error."""
    loop = Loop()

    def before_part(number, _):
        if number == 2:
            loop.inbox.post(StopRun("a host asked"))
            raise ChildProcessError

    loop.trainable.before_part = before_part
    with pytest.raises(ChildProcessError):
        loop.run()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("step", range(STEPS))
def test_a_run_that_vanished_resumes_from_its_last_checkpoint(step, prefetch, mode):
    """What was trained after the last checkpoint is trained again, on the same batches."""
    first = Loop(plan=plan_of(prefetch, mode), save_every=3)
    vanish(first, step)
    second = Loop(first.store, plan=plan_of(prefetch, mode), save_every=3)
    second.run()
    assert second.published(RunStarted)[0].progress.step == step // 3 * 3
    assert second.state == uninterrupted(mode)[0]
    assert first.rows | second.rows == uninterrupted(mode)[1]
    assert all(second.rows[number] == rows for number, rows in first.rows.items() if number in second.rows)


def test_a_run_resumes_again_and_again():
    """A run that is stopped after each step ends as if nothing had happened."""
    loop = Loop()
    rows = {}
    for step in range(1, STEPS + 1):
        loop = Loop(loop.store)
        stop(loop, step)
        rows |= loop.rows
    assert (loop.state, rows) == uninterrupted("cache")


def test_prefetching_changes_no_batch():
    """Runs with any number of batches made ahead are one and the same."""
    loops = [Loop(plan=plan_of(prefetch, "cache")) for prefetch in PREFETCH]
    for loop in loops:
        loop.run()
    assert [(loop.state, loop.rows) for loop in loops] == [uninterrupted("cache")] * len(loops)


def test_a_finished_run_that_is_started_again_does_nothing():
    """A run whose budget is spent is restored and left alone."""
    first = Loop()
    first.run()
    second = Loop(first.store)
    assert second.run().step == STEPS
    assert second.story == ["RunStarted", "RunFinished"]
    assert second.state == first.state


def test_a_larger_budget_goes_on():
    """A finished run that gets a larger budget trains only what is new."""
    first = Loop(budget=Budget(steps=5))
    first.run()
    second = Loop(first.store, budget=Budget(steps=7))
    second.run()
    assert list(second.rows) == [6, 7]
    assert first.rows | second.rows == {step: uninterrupted("cache")[1][step] for step in range(1, 8)}


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_data_that_end_stop_the_run(prefetch):
    """A run over finite data ends with a final checkpoint, and starting it again trains nothing."""
    plan = Plan(epochs=1, prefetch=prefetch)
    first = Loop(plan=plan, budget=Budget(steps=1000))
    progress = first.run()
    held = first.holdout.holds_text
    texts = [text for unit in CORPUS.values() for text in unit if not held(text)]
    assert progress.tokens == sum(len(text.encode()) + 1 for text in texts)
    assert [event.reason for event in first.published(CheckpointSaved)] == [SaveReason.FINAL]
    assert first.story[-4:] == ["StopRequested", "CheckpointStarted", "CheckpointSaved", "RunFinished"]
    second = Loop(first.store, plan=plan, budget=Budget(steps=1000))
    assert second.run() == progress
    assert second.rows == {}
    assert len(second.store.list()) == 1


@pytest.mark.parametrize(("steps", "epochs", "save_every"), [(6, None, 2), (1000, 2, 0), (1000, 500, 50)])
def test_a_run_in_which_nothing_was_to_be_predicted_is_no_finished_run(steps, epochs, save_every):
    """Where no batch holds a target, the run fails at the end of its budget or data, or after some steps, each time."""
    encoder = MemoryDocumentEncoder(TOKENIZER, untrained=[TOKENIZER.end_of_text])
    plan, texts = Plan(rows=2, epochs=epochs, encoder=encoder), MemoryDataSource({"letters": ["a"] * 40})
    first = Loop(source=texts, plan=plan, budget=Budget(steps=steps), holdout=NOTHING_HELD_OUT, save_every=save_every)
    again = Loop(first.store, texts, plan, Budget(steps=steps), NOTHING_HELD_OUT)
    for loop in (first, again):
        with pytest.raises(DataError, match="holds a token that the model is to predict, so nothing was trained"):
            loop.run()
        assert loop.story[-1] != "RunFinished"
        assert len(loop.published(StepCompleted)) < 128


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_bad_data_end_the_run_after_a_save(prefetch):
    """A record that cannot be read fails the run with the last complete step durable; mended data go on from there."""
    plan = Plan("stream", prefetch=prefetch, window=64)
    texts = [f"{number} is a number, and {number + 1} comes after it." for number in range(12)]
    mended = MemoryDataSource({"all": texts})
    whole = Loop(source=mended, plan=plan, budget=Budget(steps=12))
    whole.run()
    first = Loop(source=MemoryDataSource({"all": [*texts[:7], 7, *texts[8:]]}), plan=plan, budget=Budget(steps=12))
    with pytest.raises(DataError, match="document 7"):
        first.run()
    step = first.published(RunFailed)[0].progress.step
    assert 0 < step < 12
    assert [info.progress.step for info in first.store.list()] == [step]
    assert not first.published(RunFinished)
    second = Loop(first.store, source=mended, plan=plan, budget=Budget(steps=12))
    second.run()
    assert (second.state, first.rows | second.rows) == (whole.state, whole.rows)
