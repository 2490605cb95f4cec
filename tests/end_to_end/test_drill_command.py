"""Seeing whether a configuration survives with `drill`, as a user does."""

from __future__ import annotations

import json

import pytest

from holdfast.bootstrap.verification.fault_catalog import DRILLS
from tests.support.command_line import corpus, run, tiny


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_configuration_survives_every_drill(tmp_path):
    """Whatever befalls the short run, it ends as an undisturbed one, to the bit but for less memory and one update."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=60")
    home = tmp_path / "home"
    home.mkdir()
    told = run("drill", "all", *settings, "--json", cwd=home, timeout=1190)
    outcomes = {outcome["drill"]: outcome for outcome in map(json.loads, told.stdout.splitlines())}
    assert outcomes.keys() == DRILLS.keys() - {"s3-503"}, told.stderr
    assert all(outcome["survived"] for outcome in outcomes.values()), told.stdout
    assert {name for name, outcome in outcomes.items() if outcome["equals"] != "bit for bit"} <= {"oom", "nan", "spike"}
    assert outcomes["kill"]["codes"] == [137, 0]
    assert outcomes["kill"]["lost_steps"] in {1, 3}  # as the first checkpoint is durable by then, or not
    assert (outcomes["sigterm"]["codes"], outcomes["sigterm"]["lost_steps"]) == ([143, 0], 0)
    assert outcomes["oom"]["codes"] == [0]
    assert told.returncode == 0
    assert not list(home.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sharded_run_of_two_ranks_survives(tmp_path):
    """Ranks that hold a share of the state each save it together in a drill, as they do in a run."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=60", "distributed.processes=2", "optimizer.sharding=fsdp2")
    told = run("drill", "sigterm", *settings, "--json", cwd=tmp_path, timeout=590)
    (outcome,) = map(json.loads, told.stdout.splitlines())
    assert outcome["survived"], told.stdout + told.stderr
    assert outcome["codes"] == [143, 0]
