import asyncio
import os
import signal
import time
from dataclasses import astuple, replace
from itertools import pairwise

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.data.feed import Feed
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.stages.open_run.stage import open_run
from holdfast.bootstrap.stages.request import Request
from holdfast.bootstrap.verification.drill import Outcome, applying, disturbed, kept_as_it_was
from holdfast.bootstrap.verification.fault_catalog import DRILLS, LEARNED, Planned, draw
from holdfast.bootstrap.verification.faults import (
    Fault,
    FaultyStateStore,
    FaultyStream,
    FaultyTrainable,
    Hooks,
    WorkerDied,
    busy,
    faults_of,
)
from holdfast.bootstrap.verification.short_run import ShortRun
from holdfast.configs.sections.recovery import HealthSettings
from holdfast.configs.sections.state_store import MemoryStateStoreSettings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.events import BatchSplit, CheckpointFailed, UpdateDropped
from tests.support.loop import Loop
from tests.support.streams import Plan, stream_of

OUTCOME = Outcome(
    drill="kill",
    happened=True,
    codes=[137, 0],
    equals="bit for bit",
    holds=True,
    lost_steps=1,
    seconds=(4.0, 2.0),
    events={"StopRequested": 1},
)


@pytest.fixture
def fault(tmp_path):
    """Return a fault at the fourth step."""
    return Fault(4, tmp_path / "happened")


@pytest.fixture(scope="module")
def undisturbed():
    """Return a run that nothing befell."""
    loop = Loop()
    loop.run()
    return loop


def trainable(**hooks):
    model = MemoryModelFactory().build(vocabulary_size=257, end_of_text=256, seed=1)
    return FaultyTrainable(MemoryOptimizer().prepare(model), Hooks(**{name: [hook] for name, hook in hooks.items()}))


def test_a_drill_of_memory_halves_the_rows_and_changes_nothing_else(fault, undisturbed):
    """With memory for half the rows from a step on, the run trains on the same samples to the same losses."""
    loop = Loop(inner=trainable(before_part=fault.run_short))
    loop.run()
    assert [event.micro_batch for event in loop.published(BatchSplit)] == [2]
    assert loop.rows == undisturbed.rows
    np.testing.assert_allclose(loop.losses, undisturbed.losses, rtol=0, atol=1e-12)


def test_a_drill_of_gradients_drops_one_update(fault, undisturbed):
    """A step with gradients that are no numbers changes nothing, and the run goes on with the next samples."""
    loop = Loop(inner=trainable(before_apply=fault.spoil))
    loop.run()
    assert [event.progress.step for event in loop.published(UpdateDropped)] == [4]
    assert loop.rows == {step: rows for step, rows in undisturbed.rows.items() if step != 4}


def test_a_drill_of_the_disk_fails_one_save(fault, undisturbed):
    """A checkpoint that finds no room is told, training goes on, and the one behind it is there."""
    store = MemoryStateStore(Retention(10))
    loop = Loop(FaultyStateStore(store, Hooks(before_save=[fault.refuse])), save_every=2)
    loop.run()
    assert [event.progress.step for event in loop.published(CheckpointFailed)] == [4]
    assert [info.progress.step for info in store.list()] == [2, 6, 8]
    assert loop.state == undisturbed.state


def test_a_drill_of_reading_comes_at_the_batch_of_its_step(fault):
    """The thread that reads ahead dies at the fourth batch, once."""
    corpus, hooks = {"a": [f"text number {number}" for number in range(40)]}, Hooks(before_batch=[fault.die_reading])
    feed = Feed(FaultyStream(stream_of(corpus, Plan()), hooks), prefetch=2)
    assert [feed.next() is not None for _ in range(3)] == [True] * 3
    with pytest.raises(WorkerDied):
        feed.next()
    feed.close()
    again = Feed(FaultyStream(stream_of(corpus, Plan()), hooks), prefetch=2)
    assert all(again.next() is not None for _ in range(6))
    again.close()


@pytest.mark.parametrize(("name", "number"), [("kill", signal.SIGKILL), ("ask_to_stop", signal.SIGTERM)])
def test_a_drill_of_signals_sends_its_own_once(fault, monkeypatch, name, number):
    """The process gets the signal of the drill at its step, and neither before nor again."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    for step in (3, 4, 5):
        getattr(fault, name)(step)
    assert sent == [number]


def test_a_drill_of_losses_tells_the_same_batches_of_a_step_again(fault):
    """The losses of so many batches from the step on are a hundred times as high, whenever these are taken."""
    spike = replace(fault, length=2)

    def told(step, samples):
        return spike.exaggerate(step, samples, 1.5)

    assert [told(step, 4 * step) for step in range(3, 8)] == [1.5, 150.0, 150.0, 1.5, 1.5]
    assert [told(step, 4 * step) for step in range(3, 8)] == [1.5, 150.0, 150.0, 1.5, 1.5]
    assert [told(step, 4 * (step + 2)) for step in range(4, 8)] == [1.5] * 4


def test_a_hang_leaves_the_first_step_of_a_process_alone(fault, monkeypatch):
    """A step that never ends is no first one, which may take its time."""
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        raise WorkerDied

    monkeypatch.setattr(time, "sleep", sleep)
    fault.hang(7)
    assert slept == []
    with pytest.raises(WorkerDied):
        fault.hang(8)
    assert slept == [1.0]


@given(count=st.integers(1, 120), seed=st.integers(0, 99))
def test_faults_are_drawn_apart(count, seed):
    """A soak has as many faults as were asked for, each at a step of its own, the same for a seed."""
    spikes, steps = [Planned("spike", 67, 3)], max(4 * count, 128)
    drawn = draw([*DRILLS], count, steps, spikes=spikes, seed=seed)
    assert drawn == draw([*DRILLS], count, steps, spikes=spikes, seed=seed)
    places = [fault.step for fault in drawn]
    assert (len(drawn), places) == (count, sorted(set(places)))
    assert all(3 <= step <= steps - 4 for step in places)
    learned = [fault.step for fault in drawn if fault.drill in LEARNED]
    assert all(later - earlier >= 8 for earlier, later in pairwise(learned))
    assert [fault for fault in drawn if fault.drill == "spike"] == spikes
    assert not [fault for fault in drawn if fault.drill == "full-disk" and 59 <= fault.step < 78]


def test_a_spike_comes_where_losses_are_known():
    """The run of that drill is long enough for the loss to stand out, and for the steps behind it."""
    health = HealthSettings()
    run = disturbed(ShortRun((), (), "folder", steps=6, every=2), "spike", health)
    (fault,) = run.faults
    assert fault.length == health.spike_steps
    assert health.window // 2 < fault.step < run.steps - fault.length
    assert disturbed(ShortRun((), (), "folder", steps=6, every=2), "kill", health).faults == [Planned("kill", 4)]


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"data": {"kind": "files", "path": "s3://bucket/*.txt"}}, set()),
        ({}, {"s3-503"}),
        ({"recovery": {"watchdog": {"enabled": False}}}, {"s3-503", "hang"}),
        ({"recovery": {"health": {"spike": False}}}, {"s3-503", "spike"}),
        ({"run": {"budget": {"steps": 40}}}, {"s3-503", "spike"}),
        ({"run": {"budget": {"steps": 41}}}, {"s3-503"}),
    ],
)
def test_what_could_show_nothing_is_left_out(settings, left_out):
    """A drill whose fault cannot come to a configuration, or that nothing there answers, is none of its drills."""
    assert {*DRILLS} - {*applying(TrainSettings.model_validate(settings))} == left_out


def test_s3_refuses_as_often_as_was_planned(tmp_path, monkeypatch):
    """Each fault refuses some requests, one after another with calm between, and marks that it came."""
    registered = []
    monkeypatch.setattr(fsspec, "register_implementation", lambda _, kind, **__: registered.append(kind))

    async def answer(*_, **__):
        return "answer"

    monkeypatch.setattr("s3fs.S3FileSystem._call_s3", answer)
    markers = [tmp_path / "first", tmp_path / "second"]
    busy(markers)
    files, seen = registered[0](skip_instance_cache=True), []
    for _ in range(24):
        try:
            seen.append(asyncio.run(files._call_s3("get_object")))
        except OSError:
            seen.append(sum(marker.exists() for marker in markers))
    assert seen == [*[1] * 4, *["answer"] * 6, *[2] * 4, *["answer"] * 10]
    busy(markers)
    assert len(registered) == 1


@pytest.mark.parametrize(
    ("arguments", "idle"),
    [("soak --steps 9", "--steps"), ("kill --faults 3", "--faults"), ("all --seed 0", "--seed")],
)
def test_options_that_a_drill_has_no_use_for_are_refused(arguments, idle, capsys):
    """A number that would do nothing ends the command with code 2 and its name."""
    assert main(["drill", *arguments.split()]) == 2
    assert f"{idle} does not apply to `drill {arguments.split()[0]}`" in capsys.readouterr().err


@pytest.mark.parametrize("drill", DRILLS)
def test_every_drill_has_its_fault(tmp_path, drill, monkeypatch):
    """Each drill that is taught puts something around a part of the run, and a run without a drill is as it is."""
    planted = []
    monkeypatch.setattr(fsspec, "register_implementation", lambda *named, **_: planted.append(named))
    parts = faults_of([Planned(drill, 4)], lambda place: tmp_path / f"happened-{place}")
    assert all(isinstance(part, Around) for part in parts.values())
    hooks = parts["trainable"].wrap(trainable()).hooks
    planted += [hook for found in astuple(hooks) for hook in found]
    assert len(planted) == 1
    assert faults_of([], lambda place: tmp_path / f"happened-{place}") == {}


def test_what_is_put_around_a_part_gets_the_part(tmp_path):
    """The run gets the wrapper of the very store that it would have had."""
    settings = TrainSettings(state_store=MemoryStateStoreSettings())
    parts = faults_of([Planned("full-disk", 4)], lambda place: tmp_path / f"happened-{place}")
    opened = open_run(Request(settings, tmp_path, Ports(settings, parts), print), SingleProcessGroup(), Inbox())
    assert isinstance(opened.state_store, FaultyStateStore)
    assert opened.state_store.inner is opened.inner_store
    assert list(opened.state_store.list()) == []


@pytest.mark.parametrize(
    ("changes", "survived"),
    [({}, True), ({"happened": False}, False), ({"codes": [137, 1]}, False), ({"holds": False}, False)],
)
def test_a_run_has_survived_if_the_fault_came_and_the_end_is_as_promised(changes, survived):
    """A fault that did not come, a last start that failed and another end are no survival."""
    outcome = replace(OUTCOME, **changes)
    assert outcome.survived is survived
    assert ("kill: survived" in outcome.line()) is survived


def test_what_a_drill_teaches_of_memory_is_forgotten(tmp_path):
    """The sizes that real runs remember are behind a drill what they were before it."""
    (tmp_path / "old.json").write_text("8")
    with kept_as_it_was(tmp_path):
        (tmp_path / "old.json").write_text("4")
        (tmp_path / "new.json").write_text("2")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.json": "8"}


def test_drills_are_listed(capsys):
    """`drill list` teaches each drill in a line."""
    assert main(["drill", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*DRILLS, "soak"]
