"""Whether a dead run is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.fault_tolerance.restart_policy import Ending, GiveUp, ProcessExit, RestartPolicy, StartAgain

POLICY = RestartPolicy(max_restarts=10, crash_loop=3, first_seconds=1.0, longest_seconds=5.0)
endings = st.sampled_from(Ending)


def test_what_a_restart_cannot_help_is_left():
    """A finished run, a user's mistake and a run that a signal stopped are not restarted, and nothing is reported."""
    assert POLICY.after([ProcessExit(Ending.FINAL, has_progressed=True)]) == GiveUp()


@pytest.mark.parametrize("ending", [Ending.CRASHED, Ending.RESTART_NEEDED])
def test_a_crash_is_started_again(ending):
    """Any other end is tried again after the first pause."""
    assert POLICY.after([ProcessExit(ending, has_progressed=False)]) == StartAgain(1.0)


def test_pauses_grow_until_the_run_comes_further():
    """Each death without a new checkpoint doubles the pause up to the longest one, and progress begins anew."""
    policy = RestartPolicy(crash_loop=9, first_seconds=1.0, longest_seconds=5.0)
    crash, progress = (
        ProcessExit(Ending.CRASHED, has_progressed=False),
        ProcessExit(Ending.CRASHED, has_progressed=True),
    )
    story = [progress, crash, crash, crash, crash, progress]
    pauses = [policy.after(story[: end + 1]).seconds for end in range(len(story))]
    assert pauses == [1.0, 1.0, 2.0, 4.0, 5.0, 1.0]


def test_a_crash_loop_ends():
    """As many deaths in a row without a new checkpoint as the limit says are the end, with the reason in words."""
    loop = [ProcessExit(Ending.CRASHED, has_progressed=True), *[ProcessExit(Ending.CRASHED, has_progressed=False)] * 3]
    assert isinstance(POLICY.after(loop[:-1]), StartAgain)
    assert "3 times in a row without a new checkpoint" in POLICY.after(loop).reason


def test_a_planned_restart_is_no_crash():
    """A run that asked for a new process and had come further goes on at once, however often."""
    assert POLICY.after([ProcessExit(Ending.RESTART_NEEDED, has_progressed=True)] * 50) == StartAgain(0.0)


@given(st.lists(st.tuples(endings, st.booleans()), max_size=100), st.integers(0, 10), st.integers(1, 5))
def test_it_terminates(ends, max_restarts, crash_loop):
    """Whatever the deaths, no more than the allowed restarts are made, apart from planned ones."""
    policy = RestartPolicy(max_restarts, crash_loop)
    deaths, restarts = [], 0
    for ending, has_progressed in [*ends, *[(Ending.CRASHED, False)] * crash_loop]:
        deaths.append(ProcessExit(ending, has_progressed))
        if isinstance(policy.after(deaths), GiveUp):
            break
        restarts += 1
    else:
        pytest.fail("a crash loop went on")
    assert restarts <= max_restarts + sum(death.is_planned for death in deaths)


@given(st.lists(st.tuples(endings, st.booleans()), min_size=1, max_size=200))
def test_pauses_are_bounded(ends):
    """No pause is negative or longer than the longest."""
    verdict = RestartPolicy(longest_seconds=5.0).after([ProcessExit(*end) for end in ends])
    assert isinstance(verdict, GiveUp) or 0.0 <= verdict.seconds <= 5.0
