"""Many random faults in one supervised run, by `drill soak`."""

from __future__ import annotations

import json

import pytest

from holdfast.bootstrap.verification.fault_catalog import DRILLS
from tests.support.command_line import corpus, run, tiny
from tests.support.s3_server import s3_server


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_faults_are_survived(tmp_path):
    """Whatever befalls a supervised run, a hundred times, it comes to the end of one that only learned of it."""
    home = tmp_path / "home"
    home.mkdir()
    with s3_server("soak") as server:
        server.put("a.jsonl", corpus(tmp_path, documents=400).read_bytes())
        settings = tiny(home / "x", "data.path=s3://soak/*.jsonl", "data.mode=stream", "run.budget.steps=100000")
        told = run("drill", "soak", *settings, "--faults", "100", "--json", cwd=home, timeout=3500)
    assert told.returncode == 0, told.stdout + told.stderr[-20_000:]
    outcome = json.loads(told.stdout)
    assert outcome["survived"], outcome
    assert sum(outcome["faults"].values()) == 100
    assert outcome["faults"].keys() == DRILLS.keys()
    assert outcome["goodput"].startswith("goodput: ")
    assert not [path for path in home.iterdir() if path.name != "cache"]
