"""A run whose machine is lost goes on from its archive in S3."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.command_line import Hold, corpus, run, start, tiny, wait_until
from tests.support.s3_server import s3_server

FOLDER = Path("runs/default")
LAST = FOLDER / "checkpoints/checkpoint-30"


def events(home: Path) -> list[dict]:
    return list(map(json.loads, (home / FOLDER / "events.jsonl").read_text().splitlines()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_machine_costs_nothing(tmp_path):
    """Killed in mid-run with its whole run folder lost, a run ends with the bytes of one that nothing disturbed."""
    undisturbed, lost = tmp_path / "undisturbed", tmp_path / "lost"
    for home in (undisturbed, lost):
        home.mkdir()
    path = corpus(tmp_path)
    settings = tiny(path, "state_store.keep=100", "state_store.disk_budget=1MB", "data.shuffle_tokens=4096")
    hold = Hold(tmp_path)
    with s3_server("archive") as server:
        archived = [*settings, "state_store.archive.url=s3://archive/runs", "state_store.archive.keep=100"]
        whole = run("train", *archived, "run.name=whole", "run.dir=runs/default", cwd=undisturbed)
        assert whole.returncode == 0, whole.stderr
        hold.behind(9)
        process = start("train", *archived, hold.settings, cwd=lost)
        commit = "archive/runs/default/checkpoint-5/COMMIT"
        wait_until(lambda: server.files().exists(commit), process, "no copy was made")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
        shutil.rmtree(lost / "runs")
        resumed = run("train", *archived, cwd=lost, timeout=200)
        assert resumed.returncode == 0, resumed.stderr
    told = events(lost)
    moved = [(event["source"], event["target"]) for event in told if event["event"] == "CheckpointMoved"]
    assert moved[0] == ("archive", "disk")
    assert [0 < event["step"] < 30 for event in told if event["event"] == "RunStarted"] == [True]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (lost / LAST / name).read_bytes() == (undisturbed / LAST / name).read_bytes()
