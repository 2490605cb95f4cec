"""T9: two processes on one run folder."""

from __future__ import annotations

import signal

import pytest

from tests.support.forked_runs import final_state, stored_steps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("num_rounds", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_of_two_that_start_together_one_trains(runs, home, num_rounds):
    """One of two runs that start at the same time in one folder trains to its end, and the other exits with 4."""
    waiting = {"phase": "data", "count": 1, "until": "ended"}
    for number in range(num_rounds):
        place = home / f"{number}"
        results = runs.together(*[runs.job(place, at=waiting), runs.job(place, at=waiting)])
        assert sorted(result["code"] for result in results) == [0, 4], (place / "err.log").read_text()
        assert (place / "err.log").read_text().count("another process trains") == 1
        assert final_state(place) == runs.undisturbed


def test_a_stopped_holder_keeps_its_folder(runs, home):
    """A run that is stopped with SIGSTOP is not taken for dead: another exits with 4, and it goes on to its end."""
    stopping = {"phase": "backward", "count": 12, "number": signal.SIGSTOP}
    result = runs.run(home, at=stopping, then=[runs.job(home)])
    assert [other["code"] for other in result["then"]] == [4]
    assert result["code"] == 0, (home / "err.log").read_text()
    assert stored_steps(home) == [4, 8, 12]
    assert final_state(home) == runs.undisturbed
