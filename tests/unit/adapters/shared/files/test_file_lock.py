"""Locks of the operating system keep others out, and leave no descriptor behind."""

from __future__ import annotations

import os
import threading

import pytest

from holdfast.adapters.shared.files.file_lock import lock, locked, open_folder, open_lock


@pytest.fixture(params=["file", "folder"])
def opened(request, tmp_path):
    """Return a function that opens the same file, or the same folder, each time anew."""
    return (lambda: open_lock(tmp_path / "LOCK")) if request.param == "file" else (lambda: open_folder(tmp_path))


def is_closed(descriptor):
    """Return whether the descriptor is closed."""
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def test_a_lock_keeps_others_out_until_it_is_closed(opened):
    """Another one is refused at once, and its descriptor is closed; shared locks let each other in."""
    held = lock(opened())
    other = opened()
    with pytest.raises(BlockingIOError):
        lock(other)
    assert is_closed(other)
    os.close(held)
    shared = [lock(opened(), is_shared=True) for _ in range(2)]
    with pytest.raises(BlockingIOError):
        lock(opened())
    for descriptor in shared:
        os.close(descriptor)
    os.close(lock(opened()))


def test_a_block_waits_for_the_lock_and_gives_it_back(opened):
    """It begins when the other one has ended, and its lock ends with it, also by an error."""
    order, held = [], lock(opened())

    def work():
        with locked(opened()):
            order.append("block")

    thread = threading.Thread(target=work)
    thread.start()
    order.append("before")
    os.close(held)
    thread.join()
    assert order == ["before", "block"]
    descriptor = opened()
    with pytest.raises(ValueError, match="no"), locked(descriptor):
        int("no")
    assert is_closed(descriptor)
    os.close(lock(opened()))


def test_a_file_system_without_locks_leaves_no_descriptor(opened, monkeypatch):
    """The error of the system is raised as it is."""

    def refuse(_descriptor, _kind):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    for take in (lock, lambda each: locked(each).__enter__()):
        descriptor = opened()
        with pytest.raises(OSError, match="not supported"):
            take(descriptor)
        assert is_closed(descriptor)
