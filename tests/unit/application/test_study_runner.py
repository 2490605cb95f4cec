"""Studies whose trials are trained in imagination, with kills, stops and several processes."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.adapters.study.memory import MemoryStudy
from holdfast.application.study_runner import StudyRunner
from holdfast.domain.errors import StateError
from holdfast.domain.tuning.trial import StudyPlan, TrialEnd, TrialState, best_of_trials
from holdfast.ports.testing.study import SPACE, result_of

STEPS = (10, 20, 30)


class World:
    """A study, and what is trained of its trials: several runners may share it, each as a process of its own."""

    def __init__(self, *, parallel=1, seed=0):
        self.study = MemoryStudy(SPACE, 5, parallel, startup=2)
        self.chance = Random(seed)
        self.claimed, self.done, self.trained = set(), {}, []
        self.most_at_once = 0

    def runner(self, workers, plan, **options):
        return Runner(self, workers, plan, **options)


class FakeRun:
    """A trial that takes a step at some of the calls of ``poll``, and waits for the verdict after each step."""

    def __init__(self, world, number, breaks=None):
        self.world, self.number, self.breaks = world, number, breaks
        self.new, self.answered, self.is_closed, self.stops = [], {}, False, 0
        world.claimed.add(number)
        world.most_at_once = max(world.most_at_once, len(world.claimed))
        self.done = world.done.setdefault(number, [])

    def start(self, parameters):
        self.parameters = parameters
        self.new = [(step, result_of(parameters, step)) for step in self.done]

    def measurements(self):
        found, self.new = self.new, []
        return found

    def answer(self, verdict):
        self.answered[verdict.step] = verdict

    def poll(self):
        if self.breaks == self.number:
            msg = "the disk is full"
            raise StateError(msg)
        if self.done and (verdict := self.answered.get(self.done[-1])) is None:
            return None
        if self.done and verdict.reason is not None:
            return TrialEnd(TrialState.PRUNED, result_of(self.parameters, self.done[-1]), 0, verdict.reason)
        if self.done and self.done[-1] == STEPS[-1]:
            return TrialEnd(TrialState.COMPLETE, result_of(self.parameters, STEPS[-1]), 300)
        if self.world.chance.random() < 0.6:
            step = STEPS[len(self.done)]
            self.done.append(step)
            self.world.trained.append((self.number, step))
            self.new.append((step, result_of(self.parameters, step)))
        return None

    def request_stop(self, number=None):
        self.stops += 1

    def has_stopped(self):
        return True

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            self.world.claimed.discard(self.number)


class KilledError(BaseException):
    """Stands for the end of the process."""


class Runner:
    def __init__(self, world, workers, plan, *, kill_after=None, breaks=None):
        self.world, self.breaks, self.runs, self.ends, self.rounds = world, breaks, [], [], 0
        self.kill_after = kill_after
        self.time = 0.0
        self.runner = StudyRunner(
            world.study,
            plan,
            workers,
            self.claim,
            self,
            describe=lambda step, value: f"pruned at step {step}",
            sleep=self.sleep,
            clock=lambda: self.time,
        )

    def claim(self, number):
        if number in self.world.claimed:
            return None
        self.runs.append(FakeRun(self.world, number, self.breaks))
        return self.runs[-1]

    def sleep(self, seconds):
        self.time += 10 * seconds
        self.rounds += 1
        assert self.rounds < 10_000, "it never ends"
        if self.kill_after is not None and self.rounds >= self.kill_after:
            raise KilledError

    def on_begin(self, number, parameters):
        assert parameters == self.world.study.trials()[number].parameters

    def on_measurement(self, number, step, value, verdict):
        assert verdict.step == step

    def on_end(self, number, end):
        self.ends.append(number)


def course(world):
    return [(trial.parameters, trial.state, trial.value, trial.measurements) for trial in world.study.trials()]


def undisturbed(parallel=1):
    world = World(parallel=parallel)
    assert world.runner(parallel, StudyPlan(parallel, trials=12)).runner.run()
    return world


def test_a_study_trains_its_trials():
    """All trials of the plan are trained, some of them pruned, one at a time, and the study is over then."""
    world = undisturbed()
    states = [trial.state for trial in world.study.trials()]
    assert len(states) == 12
    assert {*states} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert world.most_at_once == 1
    assert not world.claimed
    pruned = [trial for trial in world.study.trials() if trial.state is TrialState.PRUNED]
    assert all(trial.note.startswith("pruned at step") for trial in pruned)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("parallel", [1, 3])
def test_kills_change_nothing(seed, parallel):
    """Killed again and again at random moments, a study takes the course of an undisturbed one."""
    world, chance, kills = World(parallel=parallel, seed=seed), Random(seed), 0
    while kills < 5:
        runner = world.runner(parallel, StudyPlan(parallel, trials=12), kill_after=chance.randrange(1, 12))
        try:
            runner.runner.run()
        except KilledError:
            kills += 1
        else:
            break
    assert world.runner(parallel, StudyPlan(parallel, trials=12)).runner.run()
    assert course(world) == course(undisturbed(parallel))
    assert best_of_trials(world.study.trials()) == best_of_trials(undisturbed(parallel).study.trials())
    assert len(world.trained) == len({*world.trained}), "no step is trained twice, as each is durable here"


def test_two_processes_share_a_study():
    """Two processes on one study never train one trial, and together take the course of one with two workers."""
    world = World(parallel=2)
    first, second = (world.runner(1, StudyPlan(2, trials=12)) for _ in range(2))
    runners = [first.runner, second.runner]
    for runner in runners:
        runner._has_ended()
    while any(not runner._is_over for runner in runners):
        for holder in (first, second):
            holder.sleep(0.05)
            if not holder.runner._has_ended():
                for number, run in list(holder.runner._open.items()):
                    holder.runner._advance(number, run)
    assert course(world) == course(undisturbed(2))
    assert first.ends
    assert second.ends
    assert sorted(first.ends + second.ends) == list(range(12))


def test_a_stop_leaves_the_trials_for_later():
    """A stop is passed to the open trials, ends none of them, and a later start continues them."""
    world = World(parallel=3)
    stopped = world.runner(3, StudyPlan(3, trials=12))
    begin = stopped.sleep

    def sleep(seconds):
        begin(seconds)
        if stopped.rounds == 2:
            stopped.runner.request_stop(15)

    stopped.runner._sleep = sleep
    assert not stopped.runner.run()
    assert sum(run.stops for run in stopped.runs) == 3
    assert not world.claimed
    assert any(not trial.has_ended for trial in world.study.trials())
    assert world.runner(3, StudyPlan(3, trials=12)).runner.run()
    assert course(world) == course(undisturbed(3))


def test_an_error_stops_the_other_trials_first():
    """An error that concerns all trials is raised once the others have saved, and no trial is recorded as failed."""
    world = World(parallel=2)
    runner = world.runner(2, StudyPlan(2, trials=12), breaks=1)
    with pytest.raises(StateError, match="the disk is full"):
        runner.runner.run()
    assert all(run.is_closed for run in runner.runs)
    assert sum(run.stops for run in runner.runs) == 2
    assert TrialState.FAILED not in [trial.state for trial in world.study.trials()]
    assert world.runner(2, StudyPlan(2, trials=12)).runner.run()
    assert course(world) == course(undisturbed(2))


def test_tokens_are_a_budget():
    """A study with a budget of tokens ends once its trials have trained on them."""
    world = World()
    assert world.runner(1, StudyPlan(tokens=600)).runner.run()
    tokens = [trial.tokens for trial in world.study.trials()]
    assert sum(tokens) >= 600 > sum(tokens[:-1])
