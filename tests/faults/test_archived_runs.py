"""T6 and T7: whole runs whose copies are cut short, and whose disk is lost."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from tests.support.archives import objects_at
from tests.support.forked_runs import FOLDER, final_state

pytestmark = pytest.mark.slow


def whole_copies(url: str) -> list[int]:
    """Return the steps whose copies count, each of which was brought and verified."""
    archive = CheckpointArchive(objects_at(url))
    steps = [info.progress.step for info in archive.list()]
    for step in steps:
        with TemporaryDirectory() as folder:
            archive.fetch(step, Path(folder) / "draft")
    return steps


def started_at(home: Path) -> list[int]:
    """Return the step at which each start of the run began."""
    lines = (home / FOLDER / "events.jsonl").read_text().splitlines()
    return [record["step"] for record in map(json.loads, lines) if record["event"] == "RunStarted"]


def test_a_run_killed_in_an_upload_goes_on_from_its_archive(runs, home):
    """T7: killed in the midst of a copy, a run leaves whole copies only; with its disk gone it goes on from them."""
    setting = f"state_store.archive.url={home / 'archive'}"
    url = str(home / "archive/default")
    at = {"phase": "upload", "count": 16, "number": signal.SIGKILL}
    assert runs.run(home, setting, at=at)["code"] == -signal.SIGKILL
    before = whole_copies(url)
    assert set(before) < {4, 8, 12}
    assert before
    shutil.rmtree(home / "runs")
    assert runs.run(home, setting)["code"] == 0, (home / "err.log").read_text()
    assert started_at(home) == [before[-1]]
    assert final_state(home) == runs.undisturbed
    assert whole_copies(url)[-1] == 12
