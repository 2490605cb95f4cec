"""A run whose W&B server is away."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.black_hole import black_hole
from tests.support.command_line import corpus, losses, start, tiny
from tests.support.slow_trackers import processes_of

pytest.importorskip("wandb")
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_server_that_never_answers(tmp_path, monkeypatch):
    """A run whose W&B server accepts and never answers ends with code 0 in time, and one line says so."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with black_hole() as server:
        section = f"{{kind: wandb, base_url: 'http://127.0.0.1:{server.port}'}}"
        process = start("train", *tiny(corpus(tmp_path), f"monitors=[jsonl, {section}]"), cwd=tmp_path)
        output, errors = process.communicate(timeout=300)
        ended = datetime.now(UTC)
        assert server.num_connections > 0
        assert process.returncode == 0, errors
        folder = tmp_path / Path("runs/default")
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        (finished,) = (event["time"] for event in events if event["event"] == "RunFinished")
        assert (ended - datetime.fromisoformat(finished)).total_seconds() < 30
        mentions = [line for line in (output + errors).splitlines() if "wandb" in line]
        assert len(mentions) == 1, mentions
        assert sorted(losses(folder)) == [*range(1, 31)]
        deadline = time.monotonic() + 100
        while processes_of(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.5)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
