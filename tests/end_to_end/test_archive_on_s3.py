"""A run whose machine is lost goes on from its archive in S3."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from command_line import corpus, run, start, tiny
from s3_server import s3_server

FOLDER = Path("runs/default")
LAST = FOLDER / "checkpoints/checkpoint-30"


def events(home: Path) -> list[dict]:
    path = home / FOLDER / "events.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def wait_for_copy(home: Path, process) -> int:
    """Return the step of the first copy in the archive, once it was told and training has gone on."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        archived = [event["step"] for event in events(home) if event["event"] == "CheckpointArchived"]
        if archived:
            return archived[0]
        time.sleep(0.01)
    pytest.fail(f"no copy was made: {process.communicate()}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_machine_costs_nothing(tmp_path):
    """Killed in mid-run with its whole run folder lost, a run ends with the bytes of one that nothing disturbed."""
    undisturbed, lost = tmp_path / "undisturbed", tmp_path / "lost"
    for home in (undisturbed, lost):
        home.mkdir()
    path = corpus(tmp_path)
    settings = tiny(path, "state_store.keep=100", "state_store.disk_budget=1MB", "data.shuffle_tokens=4096")
    with s3_server("archive"):
        archived = [*settings, "state_store.archive.url=s3://archive/runs", "state_store.archive.keep=100"]
        whole = run("train", *archived, "run.name=whole", "run.dir=runs/default", cwd=undisturbed)
        assert whole.returncode == 0, whole.stderr
        process = start("train", *archived, cwd=lost)
        wait_for_copy(lost, process)
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
