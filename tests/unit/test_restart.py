"""Whether a dead run is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.fault_tolerance.restart_policy import Death, GiveUp, RestartPolicy, StartAgain

POLICY = RestartPolicy(max_restarts=10, crash_loop=3, first_seconds=1.0, longest_seconds=5.0)
codes = st.sampled_from([0, 1, 2, 3, 4, 75, 130, 134, 137, 138, 139, 143])


@pytest.mark.parametrize("code", [0, 2, 3, 130, 138, 143])
def test_what_a_restart_cannot_help_is_left(code):
    """A finished run, a user's mistake and a run that a signal stopped are not started again, with no word about it."""
    assert POLICY.after([Death(code, has_progressed=True)]) == GiveUp()


@pytest.mark.parametrize("code", [1, 4, 75, 137, 139])
def test_a_crash_is_started_again(code):
    """Any other end is tried again after the first pause."""
    assert POLICY.after([Death(code, has_progressed=False)]) == StartAgain(1.0)


def test_pauses_grow_until_the_run_comes_further():
    """Each death without a new checkpoint doubles the pause up to the longest one, and progress begins anew."""
    policy = RestartPolicy(crash_loop=9, first_seconds=1.0, longest_seconds=5.0)
    crash, progress = Death(1, has_progressed=False), Death(1, has_progressed=True)
    story = [progress, crash, crash, crash, crash, progress]
    pauses = [policy.after(story[: end + 1]).seconds for end in range(len(story))]
    assert pauses == [1.0, 1.0, 2.0, 4.0, 5.0, 1.0]


def test_a_crash_loop_ends():
    """As many deaths in a row without a new checkpoint as the limit says are the end, with the reason in words."""
    loop = [Death(1, has_progressed=True), *[Death(137, has_progressed=False)] * 3]
    assert isinstance(POLICY.after(loop[:-1]), StartAgain)
    assert "3 times in a row without a new checkpoint" in POLICY.after(loop).reason


def test_a_planned_restart_is_no_crash():
    """A run that asked for a new process and had come further goes on at once, however often."""
    assert POLICY.after([Death(75, has_progressed=True)] * 50) == StartAgain(0.0)


@given(st.lists(st.tuples(codes, st.booleans()), max_size=100), st.integers(0, 10), st.integers(1, 5))
def test_it_terminates(ends, max_restarts, crash_loop):
    """Whatever the deaths, there are no more restarts than allowed and those that came further after code 75."""
    policy = RestartPolicy(max_restarts, crash_loop)
    deaths, restarts = [], 0
    for code, has_progressed in [*ends, *[(1, False)] * crash_loop]:
        deaths.append(Death(code, has_progressed))
        if isinstance(policy.after(deaths), GiveUp):
            break
        restarts += 1
    else:
        pytest.fail("a crash loop went on")
    assert restarts <= max_restarts + sum(death.is_planned for death in deaths)


@given(st.lists(st.tuples(codes, st.booleans()), min_size=1, max_size=200))
def test_pauses_are_bounded(ends):
    """No pause is negative or longer than the longest."""
    verdict = RestartPolicy(longest_seconds=5.0).after([Death(*end) for end in ends])
    assert isinstance(verdict, GiveUp) or 0.0 <= verdict.seconds <= 5.0
