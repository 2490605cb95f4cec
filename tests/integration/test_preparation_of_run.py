"""A run before its first step, as a host follows and stops it."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.bootstrap import build
from holdfast.bootstrap.async_run import build_async
from holdfast.bootstrap.operations.explain import explain
from holdfast.bootstrap.operations.list_runs import list_runs
from holdfast.bootstrap.run_folder.folder import read_record
from holdfast.bootstrap.run_reading.run_state import state_of
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import (
    CompilationStarted,
    Event,
    PreparationEnded,
    PreparationProgressed,
    PreparationStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
)
from holdfast.domain.phase import PreparationPhase
from tests.support.command_line import ROOT, corpus, environment, tiny

PHASES = [phase for phase in PreparationPhase if phase != PreparationPhase.COMPILATION]
COMPILED = ("model.compile=default", "optimizer.kind=accelerate", "run.deterministic=true")


@pytest.fixture
def settings(tmp_path):
    """Return a function to the settings of a tiny run on text, and ``pairs`` to those of one on preferences."""

    def of(*more):
        own = [f"run.dir={tmp_path / 'run'}", "run.budget.steps=2", "evaluation.every=0", "monitors=[]", *more]
        return load_settings([], [*tiny(corpus(tmp_path)), *own], {}).settings

    return of


def of_pairs(settings, folder):
    lines = [
        {"prompt": f"Say {number}", "chosen": f"YES {number}" * 3, "rejected": f"no {number}"} for number in range(40)
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return settings(f"data.path={path}", "data.task=preference", "data.chat.template=plain", "data.sequence_length=128")


class HangingSource:
    """A data source whose read number ``hangs_at`` never ends until ``goes_on`` is set."""

    def __init__(self, hangs_at, num_units=3):
        units = range(num_units)
        texts = {f"unit {number}": [f"some words of text {number} {line}" for line in range(50)] for number in units}
        self._source = MemoryDataSource(texts)
        self._hangs_at, self._reads = hangs_at, 0
        self.hangs, self.goes_on = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._source, name)

    def confirming(self):
        return self

    def read(self, unit, start=None):
        self._reads += 1
        if self._reads == self._hangs_at:
            self.hangs.set()
            self.goes_on.wait(60)
        yield from self._source.read(unit, start)


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_ends_each_phase(settings, tmp_path, phase):
    """The run ends in the phase in which it is asked to stop: nothing is trained, and the same run goes on later."""
    run, events = build(of_pairs(settings, tmp_path)), []
    run.subscribe(Event, events.append)
    run.subscribe(PreparationStarted, lambda event: event.phase == phase and run.request_stop("the host stops"))
    progress = run.run()
    assert (progress.step, run.stopped_by.reason) == (0, "the host stops")
    assert [event.phase for event in events if isinstance(event, PreparationStarted)][-1] == phase
    assert [event.phase for event in events if isinstance(event, PreparationEnded)] == PHASES[: PHASES.index(phase)]
    assert events[-2:] == [StopRequested(progress, "the host stops", None), RunFinished(progress)]
    assert not any(isinstance(event, RunStarted) for event in events)
    record, folder = read_record(run.directory), run.directory
    assert state_of(folder, record, []) == "stopped"
    [listed] = json.loads(list_runs(folder.parent, as_json=True, width=80))["runs"]
    assert listed["state"] == "stopped"
    assert "the host stops" in explain(folder)
    assert build(of_pairs(settings, tmp_path)).run().step == 2


def test_all_phases_are_followed(settings, tmp_path):
    """A host hears each phase begin, go on and end, in order and in the thread that trains, before the run starts."""
    run, events, threads = build(of_pairs(settings, tmp_path)), [], set()
    run.subscribe(Event, lambda event: (events.append(event), threads.add(threading.get_ident())))
    run.run()
    begun = [event.phase for event in events if isinstance(event, PreparationStarted)]
    ended = [event.phase for event in events if isinstance(event, PreparationEnded)]
    assert begun == ended == PHASES
    assert {event.phase for event in events if isinstance(event, PreparationProgressed)} == set(PHASES)
    starts = [number for number, event in enumerate(events) if isinstance(event, RunStarted)]
    assert max(n for n, event in enumerate(events) if isinstance(event, PreparationEnded)) < starts[0]
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(("hangs_at", "more"), [(1, ()), (4, ()), (4, ("data.dedup.kind=exact",))])
def test_a_source_that_hangs_is_left(settings, hangs_at, more):
    """A read that never ends, for the tokenizer, the tokens or the duplicates, does not keep a stop waiting."""
    source = HangingSource(hangs_at)
    run = build(settings("tokenizer.vocabulary_size=260", *more), data_source=source)
    run.subscribe(PreparationProgressed, lambda _: source.hangs.is_set() and run.request_stop("enough"))
    try:
        assert run.run().step == 0
        assert run.stopped_by.reason == "enough"
        assert not source.goes_on.is_set()
    finally:
        source.goes_on.set()


def test_a_task_that_is_cancelled_while_a_source_hangs_ends(settings):
    """The event loop gets its task back, although a read never ends."""
    source = HangingSource(1)

    async def cancel():
        run = build_async(settings("tokenizer.vocabulary_size=260"), data_source=source)
        task = asyncio.create_task(run.run_async())
        async for _ in run.events(PreparationProgressed):
            if source.hangs.is_set():
                task.cancel()
                break
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(asyncio.wait_for(cancel(), 120))
    finally:
        source.goes_on.set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
@pytest.mark.parametrize("length", [("run.budget.steps=3",), ("run.budget.minutes=30", "run.budget.steps=null")])
def test_a_stop_leaves_a_compilation(settings, tmp_path, monkeypatch, length):
    """Layers are compiled before the first step, and the run that goes on later has the bytes of one without a stop."""
    run, events = build(settings(*COMPILED, *length)), []
    run.subscribe(Event, events.append)
    run.subscribe(
        PreparationProgressed, lambda event: event.activity == "compiling the layers" and run.request_stop("enough")
    )
    with monkeypatch.context() as cold:
        cold.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cold"))
        assert run.run().step == 0
        assert [type(event) for event in events[-2:]] == [StopRequested, RunFinished]
        left = [thread for thread in threading.enumerate() if thread.name == "holdfast-prefetch"]
        assert left, "the compilation goes on in its thread"
        with pytest.raises(ConfigurationError, match="another run is training"):
            build(settings(*COMPILED, *length)).run()
        for thread in left:
            thread.join()
    if "run.budget.steps=3" in length:
        runs = [build(settings(*COMPILED, *length, f"run.dir={tmp_path / name}")) for name in ("run", "whole")]
        for each in runs:
            kinds = []
            each.subscribe(CompilationStarted, lambda event, kinds=kinds: kinds.append(type(event)))
            each.subscribe(StepCompleted, lambda event, kinds=kinds: kinds.append(type(event)))
            assert each.run().step == 3
            assert kinds[0] == StepCompleted, "the first step was compiled before the loop"
        weights = [next((each.directory / "checkpoints").glob("*3/model.safetensors")) for each in runs]
        assert weights[0].read_bytes() == weights[1].read_bytes()


class BrokenSource(HangingSource):
    """A source that has a mistake in its code, from a read on."""

    def read(self, unit, start=None):
        self._reads += 1
        if self._reads >= self._hangs_at:
            raise ZeroDivisionError
        yield from self._source.read(unit, start)


@pytest.mark.parametrize(("fails_at", "starts"), [(1, 0), (6, 1)])
def test_a_failure_is_one_event_with_its_post_mortem(settings, fails_at, starts):
    """Before the loop and in it, RunFailed comes once, and its handlers find the post-mortem written."""
    run = build(
        settings("tokenizer.vocabulary_size=260", "data.mode=stream", "data.holdout=0", "data.prefetch=1"),
        data_source=BrokenSource(fails_at),
    )
    events, written = [], []
    run.subscribe(Event, events.append)
    run.subscribe(RunFailed, lambda _: written.append((run.post_mortem / "traceback.txt").read_text(encoding="utf-8")))
    with pytest.raises(ZeroDivisionError) as raised:
        run.run()
    assert [event.error for event in events if isinstance(event, RunFailed)] == [raised.value]
    assert [type(event) for event in events].count(RunStarted) == starts
    assert "ZeroDivisionError" in written[0]


def test_a_mistake_of_a_user_fails_without_a_post_mortem(settings, tmp_path):
    """RunFailed comes for it too, and there is no folder to look at."""
    run, events = build(settings(f"data.path={tmp_path / 'none.jsonl'}")), []
    run.subscribe(RunFailed, events.append)
    with pytest.raises(Exception, match="none") as raised:
        run.run()
    assert [event.error for event in events] == [raised.value]
    assert run.post_mortem is None


@pytest.mark.slow
@pytest.mark.parametrize("phase", [PreparationPhase.TOKENIZER, PreparationPhase.TOKENS, PreparationPhase.MODEL])
def test_a_stop_on_one_rank_ends_all(tmp_path, phase):
    """Two processes end together, without an error, in the phase in which the second one is asked to stop."""
    settings = tiny(corpus(tmp_path), f"run.dir={tmp_path / 'run'}", "monitors=[]", "evaluation.every=0")
    launcher = ["-m", "holdfast.torchrun", "--standalone", "--nproc-per-node=2", "-m", "tests.support.stopping_rank"]
    command = [sys.executable, *launcher, phase, *settings]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    ended = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("ended ")]
    assert sorted(each["rank"] for each in ended) == ["0", "1"]
    for each in ended:
        assert each["why"] == "the second rank is to leave"
        assert (each["step"], each["begun"][-1]) == (0, phase)
