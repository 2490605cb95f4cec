import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from domain.budget import Budget
from domain.cadence import Every
from domain.progress import Progress
from domain.schedule import WarmupCosine

STEPS = st.integers(1, 2000)
RATES = st.floats(1e-6, 1.0)


def rates_of(schedule, num_steps, *, tokens_per_step=10):
    return [schedule.at(Progress(step, step * tokens_per_step)) for step in range(num_steps)]


@st.composite
def schedules(draw):
    """Draw a schedule, its number of steps and the tokens of each, the budget being in one or the other or both."""
    num_steps = draw(STEPS)
    warmup_steps = draw(st.integers(0, num_steps - 1))
    peak = draw(RATES)
    tokens = draw(st.integers(1, 10**6))
    budget = draw(st.sampled_from([Budget(steps=num_steps), Budget(tokens=num_steps * tokens)]))
    floor = peak * draw(st.floats(0, 1))
    return WarmupCosine(peak, warmup_steps, floor, budget), num_steps, tokens


@given(schedules())
def test_the_learning_rate_has_no_jump(drawn):
    """From step to step it moves no more than the steepest of a line up and a half cosine down."""
    schedule, num_steps, tokens = drawn
    rates = rates_of(schedule, num_steps, tokens_per_step=tokens)
    up = schedule.peak / max(1, schedule.warmup_steps)
    down = schedule.peak * math.pi / 2 / (num_steps - schedule.warmup_steps)
    for step, (before, after) in enumerate(pairwise(rates), 1):
        if step < schedule.warmup_steps:
            assert 0 < after - before <= up * (1 + 1e-9)
        else:
            assert -down * (1 + 1e-9) <= after - before <= 1e-9 * schedule.peak


@given(schedules())
def test_the_learning_rate_reaches_peak_and_floor(drawn):
    """Warm-up ends at the peak, from which the cosine starts; the budget ends at the floor."""
    schedule, num_steps, tokens = drawn
    rates = rates_of(schedule, num_steps + 1, tokens_per_step=tokens)
    assert rates[schedule.warmup_steps] == pytest.approx(schedule.peak)
    assert max(rates) <= schedule.peak * (1 + 1e-9)
    assert rates[-1] == pytest.approx(schedule.floor, abs=1e-9)
    if schedule.warmup_steps:
        assert rates[schedule.warmup_steps - 1] == pytest.approx(schedule.peak)
        assert rates[0] == pytest.approx(schedule.peak / schedule.warmup_steps)


@given(RATES, st.integers(1, 100), st.integers(1, 100))
def test_a_warm_up_that_outlasts_the_budget_only_rises(peak, warmup_steps, num_steps):
    """A budget that ends during warm-up leaves a finite, rising rate."""
    assume(num_steps <= warmup_steps)
    rates = rates_of(WarmupCosine(peak, warmup_steps, 0.0, Budget(steps=num_steps)), num_steps)
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(peak * num_steps / warmup_steps)


@given(schedules(), st.integers(0, 3000))
def test_the_learning_rate_is_a_function_of_progress_alone(drawn, step):
    """A resumed run stays on the curve: asking in another order gives the same answers."""
    schedule, num_steps, tokens = drawn
    progress = Progress(step, step * tokens)
    before = schedule.at(progress)
    rates_of(schedule, min(num_steps, 20))
    assert schedule.at(progress) == before


@given(STEPS, STEPS)
def test_a_budget_is_spent_when_its_first_limit_is_reached(steps, tokens):
    """Of steps and tokens the larger share counts, and a share never passes one."""
    budget = Budget(steps=steps, tokens=tokens)
    for progress in (Progress(steps - 1, tokens - 1), Progress(steps, 0), Progress(0, tokens), Progress(steps, tokens)):
        share = max(progress.step / steps, progress.tokens / tokens)
        assert budget.fraction_spent_by(progress) == share
        assert budget.is_spent_by(progress) == (progress.step >= steps or progress.tokens >= tokens)
    assert budget.fraction_spent_by(Progress(steps * 2, 0)) == 1.0


def test_a_budget_without_an_end_is_refused():
    """A run must end some time."""
    with pytest.raises(ValueError, match="steps or tokens"):
        Budget()


@given(st.integers(0, 50), st.integers(0, 500))
def test_a_cadence_is_due_at_each_multiple(steps, step):
    """Something is due after each so many steps, never at step 0, and never at all if the number is 0."""
    assert Every(steps).is_due(step) == (step in range(steps, 501, steps) if steps else False)
