"""Which earlier states a run that has gone back still stands on."""

from hypothesis import given
from hypothesis import strategies as st

from domain.health import Health


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
