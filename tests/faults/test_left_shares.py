"""Shares that the ranks of a failed run left, each by itself, whatever happens to them afterwards."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import JoinedPart
from holdfast.ports.testing.snapshots import snapshot_of
from holdfast.ports.testing.state_store import FILES, shares_of
from tests.support.command_line import corpus, environment, losses, run, tiny
from tests.support.file_faults import MEMORY, FailAt, Recorder, WatchedFiles, files_under, litter

ENGINES = {
    "fsdp2": ["optimizer.sharding=fsdp2"],
    "fsdp2-bf16": ["optimizer.sharding=fsdp2", "optimizer.precision=bf16"],
    "tensor": ["distributed.mesh.tensor=2"],
    "zero3": ["optimizer.kind=deepspeed", "optimizer.stage=3"],
}


@pytest.fixture
def root():
    with TemporaryDirectory(dir=MEMORY) as folder:
        DiskStateStore(Path(folder), Retention(3)).save(snapshot_of(1, {"model": b"one"}))
        yield Path(folder)


def store_of(root, around=None):
    return DiskStateStore(root, Retention(3), files=None if around is None else WatchedFiles(around))


def joined():
    return [part for part in shares_of(4)[0].parts if isinstance(part, JoinedPart)]


class Crash(BaseException):
    """The end of a process, in a test that goes on."""


class CrashAt(FailAt):
    """Ends the process before the operation numbered ``point``, or after it if ``is_after``."""

    is_after = False

    def __call__(self, name, path, operation):
        number, self.count = self.count, self.count + 1
        if number < self.point:
            return operation()
        if number == self.point and self.is_after and name != "open_file":
            operation()
        raise Crash


@pytest.mark.parametrize("is_after", [False, True])
def test_a_crash_while_shares_are_completed_loses_nothing(root, is_after):
    """Killed before or after any operation, the next start makes the same checkpoint of the shares."""
    point, has_crashed = 0, True
    while has_crashed:
        with TemporaryDirectory(dir=MEMORY) as folder:
            home = Path(folder)
            for share in shares_of(4):
                store_of(home).leave_share(share)
            crash = CrashAt(point, 0)
            crash.is_after = is_after
            try:
                store_of(home, crash).complete_shares(2, joined)
                has_crashed = False
            except Crash:
                store_of(home).complete_shares(2, joined)
            loaded = store_of(home).load()
            assert loaded.info is not None, point
            assert loaded.info.progress.step == 4
            assert {name: (loaded.folder / name).read_bytes() for name in FILES} == FILES
            store_of(home).tidy()
            assert litter(home) == [] == list((home / "shares").iterdir())
        point += 1
    assert point > 15


def test_a_disk_that_fails_while_a_share_is_left_changes_no_checkpoint(root):
    """Whatever operation fails, the rank raises one sentence, the checkpoint is as before, and the set is not used."""
    recorder = Recorder()
    store_of(root).leave_share(shares_of(4, save_id="a")[1])
    store_of(root, recorder).leave_share(shares_of(4, save_id="b")[1])
    before = files_under(root / "checkpoints")
    for point in range(len(recorder.operations)):
        failing = FailAt(point, errno.ENOSPC)
        with pytest.raises(StateError, match="no space"):
            store_of(root, failing).leave_share(shares_of(4, save_id=f"{point:032}")[1])
        assert files_under(root / "checkpoints") == before
    store = store_of(root)
    assert store.complete_shares(2, joined) is None
    assert store.load().info.progress.step == 1
    assert list((root / "shares").iterdir()) == []


def test_a_damaged_share_is_not_used(root):
    """A share whose bytes changed afterwards makes no checkpoint, and the older one counts."""
    for share in shares_of(4):
        store_of(root).leave_share(share)
    file = next(root.glob("shares/*/optimizer/1"))
    file.write_bytes(b"STATE OF 1")
    store = store_of(root)
    assert store.complete_shares(2, joined) is None
    assert store.load().info.progress.step == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", ["1:7:forward", "0:7:backward"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_one_rank_costs_no_step(tmp_path, engine, point):
    """If one of two ranks fails in the middle of step 7, the next start continues after step 6, though none was due."""
    more = ("run.budget.steps=10", "evaluation.every=0", "state_store.every=1000", "distributed.processes=2")
    settings = tiny(corpus(tmp_path), "optimizer.batch_size=32", *more, *ENGINES[engine])
    assert run("train", *settings, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    (tmp_path / "met").mkdir()
    record = str(tmp_path / "runs/failed/micro-batch.json")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.shortage_ranks", record, "train", *settings, "run.name=failed"],
        cwd=tmp_path, env=environment() | {"SHORTAGES": point, "MET": str(tmp_path / "met")}, text=True,
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "met").iterdir())) == 1
    events = (tmp_path / "runs/failed/events.jsonl").read_text()
    assert "each rank had left its share" in events, done.stderr[-3000:]
    found, expected = losses(tmp_path / "runs/failed"), losses(tmp_path / "runs/undisturbed")
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-5), "micro-batches are smaller after the shortage"
