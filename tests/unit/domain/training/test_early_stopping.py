"""The rule of early stopping."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.early_stopping import EarlyStopping, Patience

VALUES = st.lists(st.sampled_from([1.0, 2.0, 3.0, 2.5, 0.5]) | st.floats(), max_size=30)


def states(rule, values):
    """Return the state after each of ``values``, each taken from the JSON of a checkpoint."""
    state, found = None, []
    for step, value in enumerate(values):
        state = rule.after(state, step, {rule.metric: value})
        state = Patience.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False)))
        found.append(state)
    return found


@given(VALUES, st.integers(1, 5))
def test_a_run_stops_after_evaluations_without_a_new_minimum(values, patience):
    """A run stops exactly where the last evaluations have no value below all values before them."""
    rule = EarlyStopping("eval_loss", patience)
    finite = [value if math.isfinite(value) else math.inf for value in values]
    for end, state in enumerate(states(rule, values), start=1):
        before, late = finite[: max(0, end - patience)], finite[max(0, end - patience) : end]
        is_stuck = end >= patience and min(late) >= min(before, default=math.inf)
        assert rule.stops(state) == is_stuck
        lowest = min(finite[:end])
        assert (state.best, math.isinf(lowest)) in {(None, True), (lowest, False)}
        assert state.best is None or state.best_step == finite.index(lowest)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(0, 50))
def test_a_small_fall_is_no_improvement(values, min_delta):
    """An improvement is a fall of more than that below the last improvement; the best value is the lowest anyway."""
    rule = EarlyStopping("eval_loss", 3, min_delta)
    found = states(rule, values)
    for value, before, after in zip(values[1:], found, found[1:], strict=False):
        improves = value < before.improved - min_delta
        assert after.improved == (value if improves else before.improved)
        assert after.best == min(before.best, value)
        assert after.num_without == (0 if improves else before.num_without + 1)


@given(VALUES, st.integers(1, 5), st.floats(0, 5))
def test_a_metric_that_is_to_rise_mirrors_one_that_is_to_fall(values, patience, min_delta):
    """The accuracy of preferences improves where its negative, taken as a loss, would."""
    rising = EarlyStopping("eval_reward_accuracy", patience, min_delta)
    falling = EarlyStopping("eval_loss", patience, min_delta)
    mirrored = states(falling, [-value for value in values])
    for state, other in zip(states(rising, values), mirrored, strict=True):
        assert (state.best_step, state.num_without, rising.stops(state)) == (
            other.best_step,
            other.num_without,
            falling.stops(other),
        )
        assert state.best is None or state.best == -other.best


@given(VALUES.filter(bool), st.integers(1, 5))
def test_a_second_evaluation_of_a_step_changes_nothing(values, patience):
    """The end of the data may follow an evaluation of the same step: it counts once."""
    rule = EarlyStopping("eval_loss", patience)
    last = states(rule, values)[-1]
    assert rule.after(last, last.step, {"eval_loss": values[-1]}) == last


def test_another_metric_begins_anew():
    """The best loss says nothing about bits per byte."""
    state = states(EarlyStopping("eval_loss", 1), [1.0, 2.0])[-1]
    assert state.is_exhausted
    other = EarlyStopping("eval_bits_per_byte", 1)
    assert not other.stops(state)
    assert other.after(state, 7, {"eval_bits_per_byte": 5.0}) == Patience("eval_bits_per_byte", 7, 1, 0.0, 5.0, 7, 5.0)


def test_a_metric_that_is_not_measured_is_refused():
    """The sentence names the setting and what there is."""
    with pytest.raises(ConfigurationError, match=r"early_stopping\.metric is eval_loss/x, but .* measures eval_loss:"):
        EarlyStopping("eval_loss/x", 1).after(None, 3, {"eval_loss": 1.0})


@pytest.mark.parametrize(
    ("field", "value"), [("best", "1"), ("best", math.inf), ("num_without", -1), ("step", 1.5), ("metric", None)]
)
def test_a_state_that_is_none_is_refused(field, value):
    """A manifest with other values than those of a state is not taken for one."""
    record = Patience("eval_loss", 7, 3, 0.0, 1.0, 5).to_json() | {field: value}
    with pytest.raises(ValueError, match="early_stopping"):
        Patience.from_json(record)
