"""The threads with which torch computes on a processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from holdfast.adapters.shared.device import openmp
from holdfast.adapters.shared.device.openmp import BriefWaits, spinning_by_load, thread_times, threads_of_run
from holdfast.domain.resources.balance_policy import Spinning

ROOT = Path(__file__).resolve().parents[2]
WITH_LIBGOMP = pytest.mark.skipif(not openmp._loaded(openmp._MAPS), reason="this torch has no libgomp")
SPENT = """
import os
import time
import torch
from holdfast.adapters.shared.device.openmp import BriefWaits
torch.set_num_threads(2)
numbers = torch.ones(1 << 20)
waits = BriefWaits()
def spent():
    before = time.process_time()
    while time.thread_time() - begun < 0.3:
        pass
    return time.process_time() - before
def num_threads():
    return len(os.listdir("/proc/self/task"))
numbers.sum()
alone, results = num_threads(), []
for change in (None, waits.begin, waits.end):
    if change:
        change()
    while change == waits.end and num_threads() > alone:
        time.sleep(0.01)  # libgomp counts the extra threads until the system has ended them
    numbers.sum()  # then the other thread waits for the next one
    begun = time.thread_time()
    results.append(spent())
print(*results)
"""


@WITH_LIBGOMP
def test_threads_at_a_barrier_sleep_when_they_are_told_to():
    """A thread that waits keeps a processor busy, but not while waits are brief; after that it does so again."""
    told = {**os.environ, "PYTHONPATH": str(ROOT), "GOMP_SPINCOUNT": "1000000000"}
    told.pop("OMP_NUM_THREADS", None)
    child = subprocess.run([sys.executable, "-c", SPENT], env=told, capture_output=True, text=True, check=True)
    spun, brief, again = map(float, child.stdout.split())

    assert brief < 0.45
    assert min(spun, again) > brief + 0.01


@WITH_LIBGOMP
def test_what_is_computed_does_not_depend_on_waits():
    """The number of threads, and so every bit, is the same while waits are brief."""
    numbers, waits = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0)), BriefWaits()
    before = (torch.get_num_threads(), float(numbers.sum()))
    waits.begin()
    try:
        assert (torch.get_num_threads(), float(numbers.sum())) == before
    finally:
        waits.end()


def test_no_thread_is_left():
    """Neither who looks nor who has threads sleep is there when the block ends, whatever was decided last."""
    before = set(threading.enumerate())
    decided = threading.Event()

    with spinning_by_load(Spinning(), seconds=0.001):
        decided.wait(0.05)
    waits = BriefWaits()
    waits.begin()
    waits.begin()
    waits.end()
    waits.end()

    assert set(threading.enumerate()) == before


class NoThread(threading.Thread):
    """A thread that the system does not give."""

    def start(self):
        msg = "can't start new thread"
        raise RuntimeError(msg)


@WITH_LIBGOMP
def test_without_another_thread_training_continues(monkeypatch):
    """Where the system gives no thread, waits stay as they are for good, and neither begin nor end raises."""
    waits, before = BriefWaits(), set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(openmp, "Thread", NoThread)
        waits.begin()
        waits.end()
        with spinning_by_load(Spinning()):
            assert set(threading.enumerate()) == before
    waits.begin()

    assert set(threading.enumerate()) == before


@WITH_LIBGOMP
def test_without_room_no_thread_is_started(monkeypatch):
    """The threads of all ranks on the machine are asked for, and where they do not fit none is started."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    asked, before = [], set(threading.enumerate())
    waits = BriefWaits(has_room=lambda number: asked.append(number) is not None)
    waits.begin()
    waits.begin()
    waits.end()

    assert set(threading.enumerate()) == before
    assert asked == [3 * len(openmp._loaded(openmp._MAPS)) * (len(os.sched_getaffinity(0)) + 1)]


@WITH_LIBGOMP
def test_a_libgomp_that_is_another_leaves_nobody_waiting(tmp_path):
    """A library of that name without its function neither stops the caller nor the end."""
    other = tmp_path / "libgomp-other.so"
    other.symlink_to(next(line.split()[-1] for line in openmp._MAPS.read_text().splitlines() if "/libm" in line))
    (tmp_path / "maps").write_text(f"0-1 r-xp 0 00:00 1 {other}\n")
    waits = BriefWaits(tmp_path / "maps")
    waits.begin()
    waits.end()
    waits.begin()

    assert not any(thread.name == "holdfast-openmp" for thread in threading.enumerate())


def test_another_system_has_no_such_threads(tmp_path):
    """Where the system tells nothing of libraries or threads, nothing is waited for and nothing done."""
    waits = BriefWaits(tmp_path / "maps")
    waits.begin()
    waits.end()

    assert thread_times(tmp_path).ran == 0.0


@pytest.fixture
def quota(monkeypatch):
    """Let eight processors be allowed, three be granted, and torch compute with as many as allowed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(openmp, "usable_cpus", lambda: 3)
    monkeypatch.setattr(openmp, "allowed_cpus", lambda: 8)
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield monkeypatch
    torch.set_num_threads(before)


@pytest.mark.parametrize(("recorded", "expected"), [("", 3), ("8", 8), ("5", 5), ("2", 3), ("16", 3), ("strange", 3)])
def test_threads_follow_the_quota_of_a_new_run(quota, recorded, expected):
    """A run computes with as many threads as its quota grants, but keeps the number that its bits came from."""
    with threads_of_run(recorded):
        assert torch.get_num_threads() == expected

    assert torch.get_num_threads() == 8


def test_the_users_number_of_threads_stays(quota):
    """Who says OMP_NUM_THREADS has chosen."""
    quota.setenv("OMP_NUM_THREADS", "8")
    with threads_of_run():
        assert torch.get_num_threads() == 8
