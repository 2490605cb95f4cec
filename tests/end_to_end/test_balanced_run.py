"""Runs that use more or less of their machine."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from holdfast.adapters.resource_probe.memory import QUIET, MemoryResourceProbe
from holdfast.bootstrap import build
from holdfast.bootstrap.stages.attach.resource_balance import free_unused_memory, knobs_of, load_policy
from holdfast.bootstrap.stages.choose.hardware import gpu_of
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.tiers import Hysteresis
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import ResourcesAdjusted, RunStarted, StepCompleted
from holdfast.domain.resources.balance_policy import Balance, Knob, KnobSetting
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.resource_probe import ResourceProbe
from tests.support.command_line import corpus, tiny

STREAM = ("data.mode=stream", "evaluation.every=0", "evaluation.at_start=false", "monitors=[]")
FULL = replace(QUIET, memory=0.97)


@pytest.fixture
def home(tmp_path):
    """Return a folder with a corpus."""
    corpus(tmp_path)
    return tmp_path


class CountedProbe(ResourceProbe):
    """Counts how often a machine, always as ``state`` says, was looked at."""

    def __init__(self, state):
        self._probe = MemoryResourceProbe([state])
        self.count = 0

    def sample(self):
        self.count += 1
        return self._probe.sample()

    def close(self):
        self._probe.close()


def run_of(home, *more, memory=QUIET, name="run"):
    """Return a tiny run on a machine that is as ``memory`` says, and the probe by which it knows."""
    overrides = tiny(home / "corpus.jsonl", f"run.dir={home / name}", "run.budget.steps=12", *STREAM, *more)
    probe = CountedProbe(memory)
    return build(load_settings([], overrides, {}).settings, resource_probe=probe), probe


def once(holds):
    """Return a handler that returns once ``holds`` says so."""

    def wait(_):
        while not holds():
            time.sleep(0.001)

    return wait


def adjustments(home, name="run"):
    """Return what was adjusted in a run, as knob, value before and after, and reason."""
    records = map(json.loads, (home / name / "events.jsonl").read_text().splitlines())
    names = ("knob", "before", "after", "reason")
    return [tuple(each[name] for name in names) for each in records if each["event"] == "ResourcesAdjusted"]


def test_a_run_on_a_full_machine_uses_less_of_it(home, monkeypatch):
    """Where memory is nearly used up, the run prepares less ahead, with the reason in its history, and trains on."""
    monkeypatch.setattr("holdfast.application.handlers.balance_resources._READING_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.bootstrap.stages.attach.resource_balance._SECONDS_BETWEEN_SAMPLES", 0.001)
    run, probe = run_of(home, "data.workers=2", memory=FULL)
    run.subscribe(StepCompleted, once(lambda: probe.count > 1))  # the run knows of the first sample by the second
    assert run.run().step == 12
    reason = "97% of the memory is in use"
    expected = [("prefetch", 4, 2, reason), ("prefetch", 2, 1, reason), ("threads", 2, 1, reason)]
    assert adjustments(home)[:3] == expected


@pytest.mark.parametrize(("memory", "manage"), [(QUIET, "true"), (FULL, "false")])
def test_a_run_is_left_alone(home, monkeypatch, memory, manage):
    """On a quiet machine, and where the settings say so, nothing is adjusted."""
    monkeypatch.setattr("holdfast.application.handlers.balance_resources._READING_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.bootstrap.stages.attach.resource_balance._SECONDS_BETWEEN_SAMPLES", 0.001)
    run, probe = run_of(home, f"resources.auto_tune={manage}", memory=memory)
    for kind in (RunStarted, StepCompleted):  # a run that waits for data is not left alone
        run.subscribe(kind, once(lambda: run.parts.data.feed.supply.batches_ready))
    run.subscribe(StepCompleted, once(lambda: probe.count > 1 or manage == "false"))
    assert run.run().step == 12
    assert adjustments(home) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), {Knob.PREFETCH: KnobSetting(4, 4, 1, 32), Knob.SAVE_EVERY: KnobSetting(5, 5, 5, 20)}),
        (("data.prefetch=0", "data.workers=3"), {Knob.PREFETCH: None, Knob.THREADS: KnobSetting(3, 3, 1, 3)}),
        (("data.prefetch=50", "resources.io_queue_size=6"), {Knob.PREFETCH: KnobSetting(50, 50, 1, 50)}),
        (("data.mode=cache",), {Knob.THREADS: None, Knob.MICRO_BATCH: KnobSetting(4, 4, 1, 4)}),
        (("optimizer.micro_batch=2",), {Knob.MICRO_BATCH: KnobSetting(2, 2, 1, 2)}),
        (("state_store.every=0",), {Knob.SAVE_EVERY: None}),
        (("state_store.keep_every=10",), {Knob.SAVE_EVERY: None}),
        (("state_store.keep_best=1", "evaluation.every=5"), {Knob.SAVE_EVERY: None}),
    ],
)
def test_the_settings_bound_the_knobs(home, settings, expected):
    """A knob is there where it can be turned, and never goes beyond what the settings give as a bound."""
    run, _ = run_of(home, "run.budget.steps=1", *settings)
    run.run()
    knobs = knobs_of(run.parts)
    assert {knob: knobs.get(knob) for knob in expected} == expected


@pytest.mark.parametrize(
    ("knob", "before", "after", "times"),
    [(Knob.MICRO_BATCH, 4, 2, 1), (Knob.MICRO_BATCH, 2, 4, 0), (Knob.THREADS, 4, 2, 0)],
)
def test_a_smaller_micro_batch_frees_memory(monkeypatch, knob, before, after, times):
    """What activations took goes back to the machine once they are fewer: it is short of it now."""
    given = []
    monkeypatch.setattr("holdfast.bootstrap.stages.attach.resource_balance.give_back_freed", lambda: given.append(knob))
    free_unused_memory(ResourcesAdjusted(Progress(), knob, before, after, "memory"))
    assert len(given) == times


class Cautious:
    """A policy of another package that takes one option."""

    def __init__(self, limit=1):
        self.limit = limit

    def after_steps(self, state, reading):
        return state, None

    def after_save(self, state, saved):
        return state, None


def no_policy():
    """Give something that is none."""
    return 5


@pytest.fixture
def offered(monkeypatch):
    """Offer names of this file as entry points of the group ``holdfast.balance``."""
    points = [
        EntryPoint(name, f"{__name__}:{target}", "holdfast.balance")
        for name, target in {"cautious": "Cautious", "nothing": "no_policy"}.items()
    ]
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: points * (group == "holdfast.balance")
    )


def policy_of(*overrides):
    return load_policy(load_settings([], overrides, {}).settings.resources)


@pytest.mark.usefixtures("offered")
def test_the_settings_choose_the_policy():
    """The built-in policy takes its limit from the settings, and one of another package its options."""
    assert policy_of("resources.max_memory=0.6") == Balance(Hysteresis(0.6, 0.5))
    assert policy_of("resources.policy=cautious", "resources.policy_options={limit: 7}").limit == 7


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["resources.policy=cautios"], "did you mean cautious"),
        (["resources.policy=nothing"], "after_steps"),
        (["resources.policy_options={limit: 7}"], "limit"),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused(overrides, named):
    """A name that is none, what is no policy, and options that nobody takes are named in a sentence."""
    with pytest.raises(ConfigurationError, match=named):
        policy_of(*overrides)


@pytest.mark.parametrize(
    ("device", "visible", "rank", "expected"),
    [
        ("cpu", "", "0", None),
        ("cuda", "", "1", "1"),
        ("cuda", "3,5", "1", "5"),
        ("cuda", "GPU-a, GPU-b", "1", "GPU-b"),
        ("cuda", "2", "1", "1"),
    ],
)
def test_the_gpu_is_the_one_that_the_process_sees(monkeypatch, device, visible, rank, expected):
    """The driver is asked for the device that the environment gives this rank, and for none without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert gpu_of({"optimizer.device": device}) == expected
