"""A lock that a killed build left behind does not stop the next start."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from torch.utils.file_baton import FileBaton

from holdfast.adapters.optimizer.deepspeed_engine import announce_builds
from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Give the folder in which torch would build an extension, with a lock that has been silent for an hour."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    folder = tmp_path / "async_io"
    folder.mkdir()
    (folder / "build.ninja").write_text("")
    (folder / "lock").write_text("")
    age(folder, 3600)
    return folder


def age(folder, seconds):
    then = time.time() - seconds
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


def test_a_stale_lock_is_removed_and_named(folder, caplog):
    """Where nobody builds any more the lock goes, with a line that names it."""
    announce_builds()
    assert not (folder / "lock").exists()
    assert str(folder / "lock") in caplog.text


def test_a_lock_that_a_process_holds_open_stays(folder):
    """However old it is: torch keeps it open as long as it builds."""
    holder = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holder, str(folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder:
        builder.stdout.readline()
        announce_builds()
        builder.stdin.close()
    assert (folder / "lock").exists()


@pytest.mark.parametrize("name", ["lock", "fresh.o"])
def test_a_lock_in_a_folder_that_still_changes_stays(folder, caplog, name):
    """Another machine may build there; the line says what to do if none does."""
    (folder / name).write_text("")
    announce_builds()
    assert (folder / "lock").exists()
    assert f"waiting until {folder / 'lock'} is gone" in caplog.text


def test_a_build_is_announced_before_it_begins(folder, caplog):
    """An extension that is needed and not there gets one line, one that was built none."""
    (folder / "lock").unlink()
    announce_builds(["async_io"])
    assert [record.levelno for record in caplog.records if "async_io" in record.getMessage()] == [logging.WARNING]
    caplog.clear()
    (folder / "async_io.so").write_text("")
    announce_builds(["async_io"])
    assert caplog.text == ""


def test_a_build_of_another_python_is_none_of_this_one(tmp_path, monkeypatch, caplog):
    """Each version of Python and of torch builds for itself, and so each of them says that it does."""
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setattr("torch.utils.cpp_extension.get_default_build_root", lambda: str(tmp_path))
    monkeypatch.setattr("holdfast.adapters.optimizer.deepspeed_engine.get_default_build_root", lambda: str(tmp_path))
    other = tmp_path / "py27_cpu/async_io"
    other.mkdir(parents=True)
    (other / "async_io.so").touch()
    announce_builds(["async_io"])
    assert "DeepSpeed builds async_io from source" in caplog.text


def test_a_signal_ends_the_wait_for_a_lock(folder):
    """Who stops a run that torch keeps waiting for a lock does not wait with it."""

    def wait():
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        FileBaton(str(folder / "lock")).wait()

    # the timer begins where the signal is heard, however long the host takes: unheard, it would end these tests
    with pytest.raises(StoppedAtOnce), stopping_on_signals(lambda _reason, _number: False):
        wait()
