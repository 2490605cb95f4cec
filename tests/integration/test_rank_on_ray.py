"""The process of a rank on a worker of Ray: its environment, signals and end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from holdfast.bootstrap.operations.rank_coordinator import RankCoordinator
from holdfast.bootstrap.operations.train_on_ray import (
    RankCommand,
    end_rank,
    environment_of,
    follow_rank,
    start_rank,
    wait_until_free,
    with_fresh_signals,
)
from holdfast.bootstrap.run_folder.run_lock import take_lock

CONTEXT = SimpleNamespace(
    get_world_rank=lambda: 3, get_world_size=lambda: 4, get_local_rank=lambda: 1, get_local_world_size=lambda: 2
)
WAITING = """
import os, signal, sys, time
def stop(number, frame):
    print("launcher", os.environ["TORCHELASTIC_RUN_ID"].rpartition(".")[2] == str(os.getppid()), flush=True)
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler):
        sys.exit(99)
    signal.signal(number, stop)
open(sys.argv[1], "w").close()
time.sleep(60)
"""


def test_a_rank_gets_the_variables_of_torchrun():
    """A rank on Ray finds the others as a rank of torchrun does."""
    assert environment_of(CONTEXT, ["10.0.0.1", 29500]) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [(["3"], "1,3", "1"), (["1"], "1,3", "0"), ([2], "2", "0"), (["10"], "2,10", "1"), ([], "", "1"), (["5"], "", "1")],
)
def test_the_local_rank_is_the_place_of_the_gpu_that_ray_reserved(gpus, visible, expected):
    """The device that LOCAL_RANK chooses among the visible ones is the worker's own."""
    found = environment_of(CONTEXT, ["10.0.0.1", 29500], gpus, {"CUDA_VISIBLE_DEVICES": visible})
    assert found["LOCAL_RANK"] == expected


@pytest.fixture
def muffled():
    """Block and ignore the signals as a process of Ray may."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def started(folder):
    """Start a rank that waits for a signal, and return its keeper once it does."""
    script, ready = folder / "rank.py", folder / "ready"
    script.write_text(WAITING)
    command = RankCommand([sys.executable, str(script), str(ready)], str(folder), str(folder), 1.0)
    process = start_rank(command, os.environ)
    for _ in range(3000):
        if ready.exists() or process.poll() is not None:
            return process
        time.sleep(0.02)
    pytest.fail("the rank did not start")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("muffled")
def test_a_signal_for_the_run_reaches_the_rank_whatever_ray_ignores(tmp_path, number, capfd):
    """The rank handles the signal while its keeper lives, and its exit code is that of the worker."""
    coordinator = RankCoordinator()
    process = started(tmp_path)
    coordinator.send(number)
    assert follow_rank(process, coordinator) == 128 + number
    assert capfd.readouterr().out == "launcher True\n"


@pytest.mark.usefixtures("muffled")
def test_a_rank_neither_blocks_nor_ignores_the_signals_that_stop_a_run():
    """Some shells pass a mask of signals on, so a rank clears it itself."""
    look = "import signal as s; print(s.pthread_sigmask(s.SIG_BLOCK, ()), int(s.getsignal(s.SIGTERM)))"
    found = subprocess.check_output(with_fresh_signals([sys.executable, "-c", look]), text=True)
    assert found == f"set() {int(signal.SIG_DFL)}\n"


def test_the_keeper_ends_if_the_coordinator_is_gone(tmp_path):
    """A worker that cannot ask for signals leaves no rank with a launcher."""

    def fail():
        raise OSError(errno.EHOSTDOWN, "the cluster is gone")

    process = started(tmp_path)
    (rank,) = psutil.Process(process.pid).children()
    with pytest.raises(OSError, match="gone"):
        follow_rank(process, SimpleNamespace(signals=fail))
    assert process.wait(timeout=60) == -signal.SIGTERM
    rank.kill()  # a rank of a run notices it, saves and ends


def ended(code, *others):
    """Return the decision after rank 0 has ended with ``code`` and ``others`` a moment later."""
    coordinator = RankCoordinator()
    for rank in range(1 + len(others)):
        coordinator.begin("a", rank, 1 + len(others))
    for rank, other in enumerate(others, 1):
        threading.Timer(0.2, coordinator.end, ("a", rank, other)).start()
    end_rank(coordinator, "a", 0, code, seconds=1e5, poll=0.02)  # the last rank ends the waiting
    return coordinator.status().decided


def test_a_rank_that_failed_because_of_another_does_not_ask_for_a_new_start():
    """The mistake that the other rank tells a moment later ends the run, and a crash of both does not."""
    assert ended(2) == 2
    assert ended(1, 2) == 2
    for code, *others in ((1, 1), (143,), (75, 0)):
        with pytest.raises(RuntimeError, match="rank 0"):
            ended(code, *others)


def test_waiting_for_a_run_folder_ends(tmp_path):
    """A folder that nobody holds is free at once, and one that is held is waited for as long as asked."""
    times = iter([0.0, 0.2, 0.4, 0.6])
    wait_until_free(tmp_path, 0.5, lambda: next(times))
    assert next(times) == 0.2, "it waits for nothing where nobody is"
    lock, times = take_lock(tmp_path), iter([0.0, 0.2, 0.4, 0.6, 0.8])
    wait_until_free(tmp_path, 0.5, lambda: next(times))
    os.close(lock)
    assert next(times) == 0.8
