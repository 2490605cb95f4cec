import pytest

from holdfast.application.handlers.profile_steps import ProfileSteps
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError
from holdfast.domain.events import RunFailed, RunFinished, RunStarted, StepCompleted
from holdfast.domain.training.step_outcome import Progress, StepOutcome

OUTCOME = StepOutcome(
    losses=[1.0], num_targets=1, num_tokens=1, grad_norm=1.0, learning_rate=0.1, micro_batch=1, step_seconds=0.1
)


class Watcher:
    """A profiler that notes which steps it saw; ``broken`` names what fails."""

    def __init__(self, broken=""):
        self.broken = broken
        self.seen = []
        self.is_on = False

    def start(self, step):
        self._fail("start")
        assert not self.is_on
        self.is_on = True
        self.seen.append(step)

    def step(self):
        self._fail("step")
        self.seen.append("step")

    def stop(self, name):
        self._fail("stop")
        assert self.is_on
        self.is_on = False
        self.seen.append(name)
        return f"{name}.txt"

    def _fail(self, name):
        if self.broken == name:
            message = f"cannot {name}"
            raise RuntimeError(message)


def progress(step):
    return Progress(step, 10 * step, Cursor(step))


def run(profile, steps, *, end=RunFinished, resumed_at=0):
    profile.on_start(RunStarted(progress(resumed_at)))
    for step in range(resumed_at + 1, steps + 1):
        profile.on_step(StepCompleted(progress(step), OUTCOME))
    error = (DataError("the end"),) if end is RunFailed else ()
    profile.on_end(end(progress(steps), *error))


@pytest.mark.parametrize(
    ("first", "end", "steps", "resumed_at", "seen"),
    [
        (3, 6, 9, 0, [3, "step", "step", "steps-3-5"]),
        (1, 2, 9, 0, [1, "steps-1-1"]),
        (3, 6, 9, 3, [4, "step", "steps-4-5"]),
        (3, 6, 4, 0, [3, "step", "step", "steps-3-4"]),
        (3, 6, 9, 5, []),
        (3, 6, 2, 0, [3, "steps-3-3"]),
    ],
)
def test_the_steps_asked_for_are_profiled(first, end, steps, resumed_at, seen):
    """A profile holds the steps from FIRST on and before END that this process takes, and is written once."""
    watcher, said = Watcher(), []
    run(ProfileSteps(watcher, first, end, said.append), steps, resumed_at=resumed_at)
    assert watcher.seen == seen
    assert not watcher.is_on
    assert len(said) == 1


def test_a_run_that_begins_behind_the_steps_says_so():
    """A resumed run that starts behind the steps says that nothing is profiled."""
    said = []
    run(ProfileSteps(Watcher(), 3, 6, said.append), 9, resumed_at=5)
    assert "nothing is profiled" in said[0]


def test_a_failed_run_leaves_its_profile():
    """An error of the run between the steps ends the profile, and what was seen is written."""
    watcher = Watcher()
    run(ProfileSteps(watcher, 2, 9, lambda _: None), 3, end=RunFailed)
    assert watcher.seen == [2, "step", "step", "steps-2-3"]


@pytest.mark.parametrize("broken", ["start", "step", "stop"])
def test_a_profiler_that_fails_is_left_alone(broken):
    """After an error of the profiler, which the bus reports, it is not called again."""
    watcher = Watcher(broken)
    profile = ProfileSteps(watcher, 1, 5, lambda _: None)
    errors = 0
    for call, event in [
        (profile.on_start, RunStarted(progress(0))),
        *((profile.on_step, StepCompleted(progress(step), OUTCOME)) for step in range(1, 6)),
        (profile.on_end, RunFinished(progress(5))),
    ]:
        try:
            call(event)
        except RuntimeError:
            errors += 1
    assert errors == 1
    assert watcher.is_on == (broken == "stop")
