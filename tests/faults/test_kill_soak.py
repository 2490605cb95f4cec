"""T23: runs that are killed at random moments, again and again, end as a run that nothing disturbed."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.support.forked_runs import FOLDER, STEPS, complete_steps, final_state

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_kills", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_random_kills_change_no_bit(runs, home, num_kills):
    """Killed with -9 so many times, at moments drawn from its seed, runs end with the bits of the undisturbed one."""
    seed = num_kills
    chance, kills, finished, started = random.Random(seed), 0, 0, time.monotonic()
    longest = runs.run(home / "measured", "state_store.every=2")["seconds"]
    while kills < num_kills or not finished:
        place, code, here = home / f"{finished}", -signal.SIGKILL, 0
        while code == -signal.SIGKILL:
            moment = {"kill_after": chance.uniform(0, longest)} if kills < num_kills else {}
            code = runs.run(place, "state_store.every=2", **moment)["code"]
            kills, here = kills + (code == -signal.SIGKILL), here + 1
        assert code == 0, (seed, (place / "err.log").read_text())
        assert final_state(place) == runs.undisturbed, seed
        assert complete_steps(place) == list(range(1, STEPS + 1)), seed
        assert not [*(place / FOLDER).glob("quarantine/*")], seed
        finished += 1
    seconds = time.monotonic() - started
    print(f"seed {seed}: {kills} kills, {finished} runs to the same end, {seconds:.0f} s")  # noqa: T201
