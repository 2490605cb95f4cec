"""A run that an event loop awaits and follows."""

import asyncio
import threading
from functools import partial

import pytest

from holdfast.bootstrap.async_run import EventStream, build_async
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.events import CheckpointSaved, DataEnded, Event, RunFailed, RunFinished, RunStarted, StepCompleted
from holdfast.domain.training.step_outcome import Progress
from tests.support.command_line import corpus, tiny


@pytest.fixture
def settings(tmp_path):
    def of(name, steps, *more):
        own = [f"run.dir={tmp_path / name}", f"run.budget.steps={steps}", "evaluation.every=0", *more]
        return load_settings([], [*tiny(corpus(tmp_path)), *own], {}).settings

    return of


async def listed(stream):
    return [event async for event in stream]


def test_a_run_is_awaited_and_followed(settings):
    """Streams have the events of their kinds in order, callbacks are called in the event loop, and both end."""

    async def follow():
        run = build_async(settings("run", 4), is_quiet=True)
        steps, metrics, threads = [], {}, set()
        run.on_progress(lambda progress: (steps.append(progress.step), threads.add(threading.get_ident())))
        run.on_metrics(
            lambda step, figures: (metrics.setdefault(step, {}).update(figures), threads.add(threading.get_ident()))
        )
        streams = [run.events(StepCompleted), run.events(RunStarted, RunFinished), run.events()]
        *read, progress = await asyncio.gather(*map(listed, streams), run.run_async())
        await asyncio.sleep(0)
        late = await listed(run.events())
        return progress, read, steps, metrics, threads, late

    progress, read, steps, metrics, threads, late = asyncio.run(follow())
    assert progress.step == 4
    assert [event.progress.step for event in read[0]] == steps == [1, 2, 3, 4]
    assert [type(event) for event in read[1]] == [RunStarted, RunFinished]
    assert [type(event) for event in read[2]].count(StepCompleted) == 4
    assert any(isinstance(event, CheckpointSaved) for event in read[2])
    assert metrics[4]["loss"] > 0
    assert threads == {threading.get_ident()}
    assert late == []


def test_asynchronous_callbacks_are_awaited(settings):
    """Each call of one ends before the next begins, in the order of the steps, and all have ended with the run."""

    async def follow():
        run, began, ended = build_async(settings("run", 4), is_quiet=True), [], []

        async def receive(progress):
            assert began == ended
            began.append(progress.step)
            await asyncio.sleep(0.05)
            ended.append(progress.step)

        run.on_progress(receive)
        await run.run_async()
        return ended

    assert asyncio.run(follow()) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_callback_that_fails_is_logged_once(settings, caplog, is_asynchronous):
    """Its first error is logged with its traceback, the others are not, and the run trains to its end."""

    async def fail_later(*_):
        await asyncio.sleep(0)
        msg = "later"
        raise KeyError(msg)

    def fail(*_):
        msg = "now"
        raise KeyError(msg)

    async def follow():
        run = build_async(settings("run", 3), is_quiet=True)
        run.on_metrics(fail_later if is_asynchronous else fail)
        return await run.run_async()

    assert asyncio.run(follow()).step == 3
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "callback" in record.getMessage()
    assert record.exc_info[0] is KeyError


def test_a_callback_that_is_cancelled_is_one_that_failed(settings, caplog):
    """What it awaits may be cancelled: its later calls are made, and the run ends."""

    async def follow():
        run, called = build_async(settings("run", 3), is_quiet=True), []

        async def receive(progress):
            called.append(progress.step)
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

        run.on_progress(receive)
        return (await asyncio.wait_for(run.run_async(), 300)).step, called

    assert asyncio.run(follow()) == (3, [1, 2, 3])
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [asyncio.CancelledError]


def test_callbacks_end_with_a_run_that_fails(settings):
    """The error of a run is raised once its callbacks have ended."""

    async def follow():
        run, ended = build_async(settings("run", 3), is_quiet=True), []

        async def receive(progress):
            await asyncio.sleep(0.3)
            ended.append(progress.step)

        class Panic(BaseException):
            pass

        def fail(_):
            raise Panic

        run.on_progress(receive)
        run.run.subscribe(StepCompleted, fail)
        with pytest.raises(Panic):
            await run.run_async()
        return ended

    assert asyncio.run(follow()) == [1]


class _Handler:
    async def __call__(self, _):
        pass


async def _handle(_place, _event):
    pass


@pytest.mark.parametrize(
    ("handler", "name"), [(_handle, "_handle"), (partial(_handle, 1), "partial"), (_Handler(), "_Handler")]
)
def test_an_asynchronous_handler_of_the_training_thread_is_refused(settings, handler, name):
    """It could never be awaited there, so the run ends before it trains."""

    async def follow():
        run = build_async(settings("run", 3), is_quiet=True)
        run.run.subscribe(StepCompleted, handler)
        await run.run_async()

    with pytest.raises(ConfigurationError, match=f"^{name} is asynchronous"):
        asyncio.run(follow())


def test_a_cancelled_task_saves_and_stops(settings):
    """Whoever cancels the task that awaits a run gets a checkpoint of the last step, and the next run continues."""

    async def cancel():
        run = build_async(settings("run", 100_000, "state_store.every=0"), is_quiet=True)
        task = asyncio.create_task(run.run_async())
        async for event in run.events(StepCompleted):
            if event.progress.step == 3:
                task.cancel()
                break
        with pytest.raises(asyncio.CancelledError):
            await task
        return run.run.newest_checkpoint(), run.run.stopped_by

    location, stopped_by = asyncio.run(cancel())
    assert stopped_by.reason == "the task that awaits the run was cancelled"
    step = int(location.rpartition("-")[2])
    assert step >= 3

    async def again():
        run = build_async(settings("run", step + 1), is_quiet=True)
        started, progress = await asyncio.gather(listed(run.events(RunStarted)), run.run_async())
        return started[0].progress.step, progress.step

    assert asyncio.run(again()) == (step, step + 1)


def test_an_error_of_the_run_is_that_of_the_task(settings, tmp_path):
    """A mistake in the settings reaches the one who awaits the run, and the streams end with RunFailed."""

    async def fail():
        run = build_async(settings("run", 3, f"data.path={tmp_path / 'none.jsonl'}"), is_quiet=True)
        stream = asyncio.create_task(listed(run.events()))
        with pytest.raises((ConfigurationError, DataError), match="none") as raised:
            await run.run_async()
        return raised.value, await asyncio.wait_for(stream, 60)

    error, events = asyncio.run(fail())
    assert events[-1] == RunFailed(Progress(), error)
    assert [type(event) for event in events].count(RunFailed) == 1


def test_a_slow_reader_misses_the_oldest_events():
    """A stream keeps the newest events of a reader that is late, and counts those that it dropped."""
    stream = EventStream((Event,), 3, lambda _: None)
    events = [DataEnded(number) for number in range(5)]  # the number stands for a progress
    for event in events:
        stream.add(event)
    stream.end()
    assert asyncio.run(listed(stream)) == events[2:]
    assert stream.missed == 2
    with pytest.raises(ConfigurationError, match="at least 1"):
        EventStream((Event,), 0, lambda _: None)
