import math
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.bootstrap.stages.build.model import schedule as build_schedule
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from holdfast.domain.training.lr_schedule import (
    WSD_DECAY,
    Constant,
    RangeTest,
    Span,
    WarmupDecay,
    WarmupStableDecay,
    half_cosine,
    one_minus_sqrt,
    straight_line,
)
from holdfast.domain.training.step_outcome import Progress

STEPS = st.integers(1, 2000)
RATES = st.floats(1e-6, 1.0)
UNITS = st.sampled_from(["steps", "tokens"])
# The steepest fall of each shape in a step, if the whole decay takes so many.
STEEPEST = {half_cosine: lambda steps: math.pi / 2 / steps, straight_line: lambda steps: 1 / steps}
STEEPEST |= {one_minus_sqrt: lambda steps: math.sqrt(1 / steps)}
SHAPES = st.sampled_from(list(STEEPEST))
FLOOR = 3e-3 * 0.1


def rates_of(schedule, num_steps, *, tokens_per_step=10):
    return [schedule.at(Progress(step, step * tokens_per_step)) for step in range(num_steps)]


def span(steps, tokens_per_step, unit):
    return Span(steps, "steps") if unit == "steps" else Span(steps * tokens_per_step, "tokens")


def limited(steps, tokens_per_step, unit):
    return Budget(steps=steps) if unit == "steps" else Budget(tokens=steps * tokens_per_step)


@st.composite
def schedules(draw):
    """Draw a schedule that decays, when in steps warm-up and decay end and the decay begins, and the tokens of each."""
    num_steps = draw(STEPS)
    warmup_steps = draw(st.integers(0, num_steps - 1))
    peak, tokens = draw(RATES), draw(st.integers(1, 10**6))
    warmup, floor = span(warmup_steps, tokens, draw(UNITS)), peak * draw(st.floats(0, 1))
    shape, unit = draw(SHAPES), draw(UNITS)
    if draw(st.booleans()):
        end = draw(st.sampled_from([limited, span]))
        length = num_steps - warmup_steps if end is span else num_steps
        schedule = WarmupDecay(peak, warmup, floor, shape, end(length, tokens, unit))
        return schedule, num_steps, warmup_steps, tokens
    decay_steps = draw(st.integers(1, num_steps - warmup_steps))
    budget, decay = limited(num_steps, tokens, unit), span(decay_steps, tokens, unit)
    return WarmupStableDecay(peak, warmup, floor, shape, budget, decay), num_steps, num_steps - decay_steps, tokens


def warmup_steps_of(schedule, tokens):
    return schedule.warmup.length if schedule.warmup.unit == "steps" else schedule.warmup.length // tokens


@given(schedules())
def test_warm_up_is_a_line_to_the_peak(drawn):
    """In steps the first rate is one share of the peak, in tokens it is none, and each step adds one share."""
    schedule, _, _, tokens = drawn
    warmup_steps = warmup_steps_of(schedule, tokens)
    first = 1 if schedule.warmup.unit == "steps" else 0
    rates = rates_of(schedule, warmup_steps + 1, tokens_per_step=tokens)
    for step, rate in enumerate(rates[:-1]):
        assert rate == pytest.approx(schedule.peak * (step + first) / warmup_steps)
    assert rates[-1] == pytest.approx(schedule.peak, rel=1e-6)


@given(schedules())
def test_the_learning_rate_has_no_jump(drawn):
    """From step to step it moves no more than a line up and the steepest of its shape down, and never rises again."""
    schedule, num_steps, begin, tokens = drawn
    rates = rates_of(schedule, num_steps + 1, tokens_per_step=tokens)
    warmup_steps = warmup_steps_of(schedule, tokens)
    up = schedule.peak / max(1, warmup_steps)
    down = (schedule.peak - schedule.floor) * STEEPEST[schedule.shape](num_steps - begin)
    slack = 1e-6 * schedule.peak
    for step, (before, after) in enumerate(pairwise(rates), 1):
        if step <= warmup_steps:
            assert -slack <= after - before <= up + slack
        else:
            assert -down - slack <= after - before <= 1e-12


@given(schedules())
def test_the_learning_rate_ends_at_the_floor(drawn):
    """It is never above the peak, is at it until the decay begins, and is the floor itself at the end and after it."""
    schedule, num_steps, begin, tokens = drawn
    rates = rates_of(schedule, num_steps + 1, tokens_per_step=tokens)
    assert max(rates) <= schedule.peak * (1 + 1e-12)
    assert rates[begin] == pytest.approx(schedule.peak, rel=1e-6)
    exactly_counted = schedule.warmup.unit == getattr(getattr(schedule, "decay", None), "unit", schedule.warmup.unit)
    assert rates[-1] == (schedule.floor if exactly_counted else pytest.approx(schedule.floor, abs=1e-6 * schedule.peak))
    assert schedule.at(Progress(num_steps * 2, num_steps * 2 * tokens)) == pytest.approx(schedule.floor)


@given(schedules(), st.lists(st.integers(1, 1000), min_size=1, max_size=200))
def test_uneven_steps_never_raise_a_decaying_rate(drawn, tokens):
    """Steps of any numbers of tokens leave the rate falling once warm-up is over."""
    schedule = drawn[0]
    progresses = [Progress(step, done) for step, done in enumerate(accumulate(tokens), 1)]
    rates = [schedule.at(p) for p in progresses if schedule.warmup.position_of(p) >= schedule.warmup.length]
    assert all(after <= before + 1e-12 for before, after in pairwise(rates))


@given(RATES, st.integers(1, 100), st.integers(1, 100))
def test_a_warm_up_that_outlasts_the_budget_only_rises(peak, warmup_steps, num_steps):
    """A budget that ends during warm-up leaves a finite, rising rate."""
    assume(num_steps <= warmup_steps)
    schedule = WarmupDecay(peak, Span(warmup_steps), 0.0, half_cosine, Budget(steps=num_steps))
    rates = rates_of(schedule, num_steps)
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(peak * num_steps / warmup_steps)


@given(schedules(), st.integers(0, 3000))
def test_the_learning_rate_is_a_function_of_progress_alone(drawn, step):
    """A resumed run stays on the curve: asking in another order gives the same answers."""
    schedule, num_steps, _, tokens = drawn
    progress = Progress(step, step * tokens)
    before = schedule.at(progress)
    rates_of(schedule, min(num_steps, 20))
    assert schedule.at(progress) == before


@given(RATES, st.integers(0, 50), st.integers(50, 10**9))
def test_a_constant_rate_stays(peak, warmup_steps, step):
    """After warm-up the rate is the peak, however long the run."""
    schedule = Constant(peak, Span(warmup_steps))
    assert schedule.at(Progress(step, step)) == peak
    assert schedule.at(Progress(0, 0)) == pytest.approx(peak / max(1, warmup_steps))


@pytest.mark.parametrize("budget", [Budget(steps=1000), Budget(tokens=10_000), Budget(steps=1000, tokens=10**9)])
def test_wsd_decays_in_the_last_tenth(budget):
    """Without a length the decay takes the last tenth of any budget, down to the floor itself."""
    schedule = WarmupStableDecay(1.0, Span(10), 0.25, straight_line, budget)
    rates = rates_of(schedule, 1001)
    assert set(rates[10:900]) == {1.0}
    assert rates[950] == pytest.approx(0.625)
    assert rates[1000] == 0.25
    assert WSD_DECAY == 0.1


@pytest.mark.parametrize(
    ("shape", "height"), [(half_cosine, 0.853553390593), (straight_line, 0.75), (one_minus_sqrt, 0.5)]
)
def test_each_shape_is_the_one_of_its_name(shape, height):
    """All shapes go from 1 to 0, and after a quarter of the way are where their formula says."""
    assert [shape(0.0), shape(1.0)] == [1.0, 0.0]
    assert shape(0.25) == pytest.approx(height)


@pytest.mark.parametrize("budget", [Budget(tokens=100), Budget(steps=100, tokens=100)])
def test_a_decay_whose_beginning_nobody_can_tell_is_refused(budget):
    """A decay that is counted back in steps needs a budget in steps alone."""
    with pytest.raises(ValueError, match="steps alone"):
        WarmupStableDecay(1.0, Span(0), 0.0, straight_line, budget, Span(10))


def from_settings(*overrides):
    settings = load_settings([], ["data.path=texts", *overrides], {}).settings
    budget = Budget(**settings.run.budget.model_dump(), epochs=settings.data.epochs)
    return build_schedule(settings.optimizer.learning_rate, settings.optimizer.schedule, budget)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], WarmupDecay(3e-3, Span(20), FLOOR, half_cosine, Budget(steps=350))),
        (["kind=linear"], WarmupDecay(3e-3, Span(20), FLOOR, straight_line, Budget(steps=350))),
        (["kind=linear", "decay_tokens=9"], WarmupDecay(3e-3, Span(20), FLOOR, straight_line, Span(9, "tokens"))),
        (["kind=constant", "warmup_steps=null"], Constant(3e-3, Span(0))),
        (["kind=constant", "warmup_tokens=7"], Constant(3e-3, Span(7, "tokens"))),
        (["kind=wsd"], WarmupStableDecay(3e-3, Span(20), FLOOR, one_minus_sqrt, Budget(steps=350))),
        (
            ["kind=wsd", "decay_steps=330", "decay_shape=linear"],
            WarmupStableDecay(3e-3, Span(20), FLOOR, straight_line, Budget(steps=350), Span(330)),
        ),
    ],
)
def test_the_settings_choose_the_schedule(overrides, expected):
    """Each kind, unit and shape of the settings is the schedule of that name; the floor is a share of the peak."""
    chosen = from_settings(*(f"optimizer.schedule.{override}" for override in overrides))
    assert chosen == expected


@pytest.mark.parametrize("length", ["data.epochs=2", "run.budget.minutes=2"])
def test_minutes_and_epochs_give_a_decay_in_steps_its_end(length):
    """The decay of wsd is counted back from the steps that are decided later, and one in tokens is refused."""
    schedule = from_settings("optimizer.schedule={kind: wsd, decay_steps: 10}", "run.budget.steps=null", length)
    assert isinstance(schedule, WarmupStableDecay)
    schedule = replace(schedule, budget=schedule.budget.decided(100))
    assert [schedule.is_decaying_at(Progress(step=step)) for step in (90, 91)] == [False, True]
    with pytest.raises(ConfigurationError, match=r"minutes and epochs become steps: give .*decay_steps or"):
        from_settings("optimizer.schedule={kind: wsd, decay_tokens: 10}", "run.budget.steps=null", length)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["decay_tokens=9"], r"decay_tokens counts tokens .* run\.budget is in steps: give .*decay_steps or"),
        (
            ["decay_steps=331"],
            r"decay_steps is 331: together with 20 steps of warm-up .* run\.budget\.steps, which is 350",
        ),
    ],
)
def test_a_decay_that_does_not_fit_the_budget_is_refused(overrides, message):
    """Of wsd the decay is counted back from the end, which must be known in the same unit and far enough."""
    with pytest.raises(ConfigurationError, match=message):
        from_settings("optimizer.schedule.kind=wsd", *(f"optimizer.schedule.{override}" for override in overrides))
    with pytest.raises(ConfigurationError, match=r"set run\.budget\.tokens to null"):
        from_settings(
            "optimizer.schedule={kind: wsd, decay_steps: 5}", "run.budget.steps=350", "run.budget.tokens=1000000"
        )


@given(STEPS, STEPS)
def test_a_budget_is_spent_when_its_first_limit_is_reached(steps, tokens):
    """Of steps and tokens the larger share counts, and a share never passes one."""
    budget = Budget(steps=steps, tokens=tokens)
    for progress in (Progress(steps - 1, tokens - 1), Progress(steps, 0), Progress(0, tokens), Progress(steps, tokens)):
        share = max(progress.step / steps, progress.tokens / tokens)
        assert budget.fraction_spent_by(progress) == share
        assert budget.is_spent_by(progress) == (progress.step >= steps or progress.tokens >= tokens)
    assert budget.fraction_spent_by(Progress(steps * 2, 0)) == 1.0


@given(st.integers(0, 50), st.integers(0, 500))
def test_a_cadence_is_due_at_each_multiple(steps, step):
    """Something is due after each so many steps, never at step 0, and never at all if the number is 0."""
    assert Cadence(steps).is_due(step) == (step in range(steps, 501, steps) if steps else False)


@given(RATES, st.floats(1e-6, 0.5), STEPS)
def test_a_range_test_rises_by_equal_factors(peak, share, num_steps):
    """The rate begins at the floor and rises by the same factor in each step, to the peak at the end of the budget."""
    rates = rates_of(RangeTest(peak, Span(0), peak * share, Budget(num_steps)), num_steps)
    assert rates[0] == pytest.approx(peak * share)
    factor = share ** (-1 / num_steps)
    assert all(later / earlier == pytest.approx(factor) for earlier, later in pairwise(rates))
    assert rates[-1] * factor == pytest.approx(peak)


def test_a_range_test_is_built_from_the_settings():
    """The kind range_test begins at the floor, and refuses a floor of 0 and a decay."""
    words = ["optimizer.schedule.kind=range_test", "optimizer.learning_rate=0.5", "optimizer.schedule.floor=0.01"]
    chosen = load_settings([], words, {}).settings.optimizer
    assert build_schedule(0.5, chosen.schedule, Budget(10)) == RangeTest(0.5, Span(20), 0.005, Budget(10))
    for wrong in ("floor=0", "decay_steps=5"):
        with pytest.raises(ConfigurationError, match="range_test"):
            load_settings([], [*words, f"optimizer.schedule.{wrong}"], {})
