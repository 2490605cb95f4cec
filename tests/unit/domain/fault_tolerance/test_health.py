"""Which earlier states a run that has gone back still stands on."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.fault_tolerance.health import REMEMBERED, Health


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=40))
def test_a_run_stands_on_what_no_return_has_passed(happened):
    """Of all that was saved, a run stands on exactly what it has not gone back behind since."""
    step, health, saved, standing = 0, Health(), [], []
    for is_return, number in happened:
        if is_return and step:
            step = number % step
            health = Health(returns=(*health.returns, step))
            standing = [entry for entry in standing if entry[0] <= step]
        else:
            step += 1 + number % 5
            saved.append((step, health))
            standing.append((step, health))
    assert [entry for entry in saved if health.has_kept(*entry)] == standing


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(1, 25))
def test_a_return_that_a_lower_one_has_undone_is_nowhere_to_go_back_to(returns, first_bad):
    """Of the steps that a run has gone back to, only those count that it has not gone behind since."""
    standing = [step for place, step in enumerate(returns) if all(step <= back for back in returns[place:])]
    good = Health(returns=tuple(returns)).last_good(first_bad, every=100)
    assert good == max([0, *(step for step in standing if step < first_bad)])


@given(st.lists(st.one_of(st.none(), st.floats(0, 9), st.just("idle")), max_size=300))
def test_a_step_without_targets_is_no_news(steps):
    """An idle step repeats the loss before it, or the drop, so that it begins neither a spike nor a series of drops."""
    health, expected = Health(), []
    for loss in steps:
        health = health.after_idle() if loss == "idle" else health.after(loss)
        expected += expected[-1:] if loss == "idle" else [loss]
    assert health.losses == tuple(expected[-REMEMBERED:])
    assert health.dropped == steps.count(None)
