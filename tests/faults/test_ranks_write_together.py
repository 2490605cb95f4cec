"""Ranks that write one checkpoint together, and one of them fails or is killed."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store import checkpoint_writer as draft
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import WaitingPart, snapshot_of
from holdfast.ports.testing.state_store import FILES, shares_of
from tests.support.file_faults import MEMORY, FailAt, Recorder, WatchedFiles, files_under, litter

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root():
    with TemporaryDirectory(dir=MEMORY) as folder:
        DiskStateStore(Path(folder), Retention(3)).save(snapshot_of(1, {"model": b"one"}))
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_killed_at_any_point_loses_nothing(killed):
    """Whenever a rank is killed, the other ends in time, the older checkpoint is as it was and a new start works."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        result = subprocess.run(
            [sys.executable, str(Path(__file__).parents[1] / "support/ranks_driver.py"), str(killed), folder],
            env={"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert len(outcomes) > (15 if killed else 40)
    assert {outcome["step"] for outcome in outcomes} == {1, 4}, "killed before the last word, and after it"
    for outcome in outcomes:
        assert outcome["codes"][killed] == -9
        assert outcome["codes"][1 - killed] in (0, 3), outcome
        assert killed == 0 or (outcome["codes"][0] == 0) == (outcome["step"] == 4), outcome
        assert outcome["is_whole"], outcome
        assert outcome["is_older_untouched"], outcome
        assert outcome["rejected"] == 0, outcome
        assert outcome["litter"] == [], outcome


def save_together(root, files=(None, None), *, more=(), over=None):
    """Save step 4 on two ranks with these file operations, the second with ``more`` parts; return what each raised.

    ``over`` is set once the first rank's save has ended.
    """
    over = over or threading.Event()
    shares = shares_of(4, is_over=over.is_set)
    shares[1] = replace(shares[1], parts=[*more, *shares[1].parts])
    stores = [DiskStateStore(root, Retention(3), files=each) for each in files]
    with ThreadPoolExecutor(2) as pool:
        saving, other = pool.submit(stores[0].save, shares[0]), pool.submit(stores[1].contribute, shares[1])
        problem = saving.exception(timeout=60)
        over.set()
        return problem, other.exception(timeout=60)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_disk_that_fails_for_one_rank_stores_nothing(root, failing):
    """Each operation that a rank's disk refuses makes the save fail for all, with the reason, and leaves no litter."""
    before = files_under(root / "checkpoints")
    recorders = [Recorder(), Recorder()]
    assert save_together(root, [WatchedFiles(recorder) for recorder in recorders]) == (None, None)
    assert DiskStateStore(root, Retention(3)).load().folder.name == "checkpoint-4"
    written = [name for name, _ in recorders[failing].operations]
    points = [number for number, name in enumerate(written) if name in {"write_chunks", "sync_file"}]
    for point in points if failing else points[:3]:
        for path in (root / "checkpoints/checkpoint-4").rglob("*"):
            if path.is_file():
                path.unlink()
        DiskStateStore(root, Retention(3)).load()
        files = [WatchedFiles(FailAt(point, errno.EIO) if rank == failing else Recorder()) for rank in range(2)]
        problem, _ = save_together(root, files)
        assert isinstance(problem, StateError), (point, written[point])
        assert "input/output error" in str(problem)
        assert files_under(root / "checkpoints") == before
        assert litter(root) == []


def test_a_first_rank_that_does_not_wait_is_found_out(root, monkeypatch):
    """With a protocol in which the first rank does not wait for the others, no whole checkpoint comes about."""

    def save_with_a_late_rank(over, may_finish):
        late = WaitingPart(threading.Event(), may_finish, "optimizer/0-late")
        problems = save_together(root, more=[late], over=over)
        return problems, files_under(DiskStateStore(root, Retention(3)).load().folder)

    over, later = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(draft, "await_reports", lambda *_: ())
        problems, found = save_with_a_late_rank(over, may_finish=over)
        assert problems[0] is not None
        assert not FILES.items() <= found.items()
    threading.Timer(0.3, later.set).start()
    problems, found = save_with_a_late_rank(threading.Event(), may_finish=later)
    assert problems == (None, None)
    assert FILES.items() <= found.items()


def test_a_wrong_reading_of_what_is_joined_is_not_saved(root, monkeypatch):
    """Whichever reading of the ranks' files is wrong as they are joined, it is read again: what they wrote is saved."""
    calls = itertools.count()
    right = os.pread

    def wrong(descriptor, size, offset):
        data = right(descriptor, size, offset)
        if data and next(calls) == point:
            return bytes([data[0] ^ 4]) + data[1:]
        return data

    monkeypatch.setattr(os, "pread", wrong)
    outcomes = []
    for point in itertools.count():
        calls = itertools.count()
        problem, _ = save_together(root)
        outcomes.append(problem)
        if problem is None:
            found = files_under(root / "checkpoints/checkpoint-4")
            assert FILES.items() <= found.items()
            shutil.rmtree(root / "checkpoints/checkpoint-4")
        if next(calls) <= point:
            break
    assert len(outcomes) > 4
    assert set(outcomes) == {None}
