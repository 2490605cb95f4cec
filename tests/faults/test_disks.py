"""T4, T5 and T8: a disk that is really full, a sync that fails once, and a clock that jumps."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import BytesPart
from tests.support.file_faults import FailAt, Recorder, WatchedFiles, files_under, litter, payload, snapshot_of

YEAR = 365 * 86_400.0


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder that is a file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system of 4 MiB takes the rights of root, also within a container")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def of_size(step, num_bytes):
    return replace(snapshot_of(step), parts=[BytesPart("model", random.Random(step).randbytes(num_bytes))])


def test_a_full_disk_keeps_what_it_has(small_disk):
    """T4: on a real disk of 4 MiB a save that does not fit damages nothing, leaves no litter, and the next works."""
    store = DiskStateStore(small_disk / "run", Retention(2))
    for step in (1, 2):
        store.save(of_size(step, 1 << 20))
    before = files_under(small_disk / "run/checkpoints")
    with pytest.raises(StateError, match="free some space"):
        store.save(of_size(3, 3 << 20))
    assert files_under(small_disk / "run/checkpoints") == before
    assert litter(small_disk / "run") == []
    store.save(of_size(4, 1 << 20))
    assert store.load().info.progress.step == 4


def test_a_write_that_is_cut_short_is_gone_on_with(tmp_path, monkeypatch):
    """T4: a system that takes three bytes of each write gets all of them in the end."""
    opened = Path.open

    def open_short(path, *arguments, **options):
        file = opened(path, *arguments, **options)
        if options.get("buffering") != 0:
            return file

        class Short(FileIO):
            def write(self, data):
                return super().write(bytes(data)[:3])

        descriptor = os.dup(file.fileno())
        file.close()
        return Short(descriptor, "wb")

    monkeypatch.setattr(Path, "open", open_short)
    store = DiskStateStore(tmp_path, Retention(1))
    store.save(snapshot_of(1))
    monkeypatch.undo()
    assert payload(1).items() <= files_under(store.load().folder).items()


def syncs_of(root: Path) -> list[int]:
    recorder = Recorder()
    DiskStateStore(root, Retention(2), files=WatchedFiles(recorder)).save(snapshot_of(1))
    return [place for place, (name, _) in enumerate(recorder.operations) if name in {"sync_file", "sync_folder"}]


def test_a_sync_that_fails_once_is_not_repeated_on_the_same_file(tmp_path):
    """T5: a save whose sync failed has failed, and the next attempt writes and syncs other files."""
    for point in syncs_of(tmp_path / "counted"):
        root, recorder = tmp_path / f"{point}", Recorder()
        failing = FailAt(point, errno.EIO)
        both = lambda name, path, do, r=recorder, f=failing: r(name, path, lambda: f(name, path, do))  # noqa: E731
        files = WatchedFiles(both)
        store = DiskStateStore(root, Retention(2), files=files)
        with pytest.raises(StateError):
            store.save(snapshot_of(1))
        first = {path for name, path in recorder.operations if name.startswith("write")}
        recorder.operations.clear()
        store.save(snapshot_of(1))
        second = {path for name, path in recorder.operations if name.startswith("write")}
        assert first.isdisjoint(second)
        assert len(second) == len(payload(1)) + 2
        synced = {path for name, path in recorder.operations if name == "sync_file"}
        assert second <= synced
        assert store.load().info.progress.step == 1


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 0.0])
def test_no_clock_changes_a_choice(tmp_path, jump):
    """T8: with a clock that jumps a year at each save, or stands, and equal times of files, choices are the same."""
    chosen = []
    for name, by in (("plain", 60.0), ("jumping", jump)):
        store = DiskStateStore(tmp_path / name, Retention(2, every=5, best=1))
        for step in range(1, 9):
            told = replace(snapshot_of(step), saved_at=4e9 + by * step, evaluation_loss=abs(step - 3.2))
            store.save(told)
            for path in (tmp_path / name).rglob("*"):
                os.utime(path, (0, 0))
        (tmp_path / name / "checkpoints/checkpoint-8/model.safetensors").write_bytes(b"damaged")
        chosen.append(([info.progress.step for info in store.list()], store.load().info.progress.step))
    assert chosen == [([3, 5, 7, 8], 7)] * 2
