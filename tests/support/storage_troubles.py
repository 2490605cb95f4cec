"""Troubles of disks and folders, planted for the checks of ``doctor``."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.bootstrap.doctor import (
    diagnosis,
    storage_checks,
)
from holdfast.bootstrap.doctor.diagnosis import perform_together
from holdfast.bootstrap.doctor.finding import Check, Finding
from holdfast.bootstrap.doctor.storage_checks import CheckedFolder, look_at_folder
from holdfast.bootstrap.run_folder.run_lock import take_lock
from tests.support.planted_troubles import (
    mounted,
    named,
    trouble,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class _CopyingRename(FileOperations):
    """Renames as a bucket that is mounted does: by a copy, after the deletion of the target."""

    def rename(self, source, target):
        if target.is_file():
            target.unlink()
            time.sleep(0.02)
        super().rename(source, target)


class _NoSync(FileOperations):
    def sync_folder(self, path):
        raise OSError(errno.EINVAL, "Invalid argument")


@trouble("error", "mount it writable")
def read_only_disk(tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "--bind", "-o", "ro", str(tmp_path)) as disk:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        (finding,) = look_at_folder(CheckedFolder("run folder", disk / "runs" / "default", "run.dir"))
    return finding


@trouble("error", "free some space there, or set run.dir")
def small_tmpfs(tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "none") as disk:
        return named("run folder space", look_at_folder(CheckedFolder("run folder", disk, "run.dir", at_once=40e6)))


@trouble("warning", "keep less, or set run.dir")
def room_for_few_checkpoints(tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=100m", "none") as disk:
        place = CheckedFolder("run folder", disk, "run.dir", at_once=60e6, needed=240e6)
        return named("run folder space", look_at_folder(place))


@trouble("error", "delete files, or set data.cache.dir")
def no_inodes(tmp_path, monkeypatch):
    place = CheckedFolder("token cache", tmp_path, "data.cache.dir")
    return storage_checks.judge_space(place, 50e9, has_inodes=False)


@trouble("error", "remove the file that is in the way, or set run.dir")
def a_file_in_the_way(tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("no folder")
    (finding,) = look_at_folder(CheckedFolder("run folder", tmp_path / "runs" / "default", "run.dir"))
    return finding


@trouble("error", "file system with atomic renames")
def rename_that_is_not_atomic(tmp_path, monkeypatch):
    place = CheckedFolder("run folder", tmp_path, "run.dir")
    return named("run folder rename", look_at_folder(place, _CopyingRename()))


@trouble("error", "set run.dir to a local file system")
def fsync_that_fails(tmp_path, monkeypatch):
    return named("run folder fsync", look_at_folder(CheckedFolder("run folder", tmp_path, "run.dir"), _NoSync()))


@trouble("error", "mount it with locks")
def locks_that_are_refused(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    return named("run folder locks", look_at_folder(CheckedFolder("run folder", tmp_path, "run.dir")))


@trouble("error", "mount it with locks")
def locks_without_effect(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    return named("run folder locks", look_at_folder(CheckedFolder("run folder", tmp_path, "run.dir")))


@trouble("warning", "save less often")
def slow_disk(tmp_path, monkeypatch):
    sync = os.fsync

    def slowly(descriptor: int) -> None:
        time.sleep(2.1)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", slowly)
    return storage_checks.check_speed(CheckedFolder("run folder", tmp_path, "run.dir"), tmp_path, FileOperations())


@trouble("warning", "TMPDIR")
def small_temporary_folder(tmp_path, monkeypatch):
    return storage_checks.check_temporary(tmp_path, 10e6)


@trouble("warning", "create that folder")
def temporary_files_elsewhere(tmp_path, monkeypatch):
    return storage_checks.check_temporary(tmp_path, 10e9, str(tmp_path / "away"))


@trouble("error", "--shm-size=1g")
def small_shared_memory(tmp_path, monkeypatch):
    return storage_checks.check_shared_memory(64e6, 4, has_gpu=True)


@trouble("error", "wait for it, end it, or give this run another run.name")
def run_folder_in_use(tmp_path, monkeypatch):
    lock = take_lock(tmp_path / "run")
    try:
        return diagnosis.check_run_lock(tmp_path / "run")
    finally:
        os.close(lock)


@trouble("error", "hangs")
def disk_that_hangs(tmp_path, monkeypatch):
    over = threading.Event()

    def wait() -> Iterator[Finding]:
        over.wait(60)
        yield from ()

    try:
        (finding,) = perform_together([Check("run folder", wait, seconds=0.1)])
    finally:
        over.set()
    return finding
