"""The page on two machines: the launch that it prints, with one machine that plays both parts."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess

import psutil
import pytest

from tests.support.command_line import losses
from tests.support.documented_job_files import printed_by
from tests.support.followed_pages import commands_of, follow, of_reader

PAGE = "docs/two-nodes.md"
CHECK, LAUNCH, HEAD, EXPLAIN, *OTHERS = commands_of(PAGE)


def free_port():
    """Return a port that no process listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(script, folder, port):
    """Start the printed command as in a terminal of the reader."""
    text = f"{HEAD}\nexec {script.partition('python')[1]}{script.partition('python')[2]}".replace(":29500", f":{port}")
    own = of_reader(folder) | {"HOME": str(folder), "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "log").open("a") as log:
        return subprocess.Popen(["bash", "-c", text], cwd=folder, env=own, stdout=log, stderr=log)


def children_of(process):
    """Return the numbers of the processes that ``process`` has started."""
    return {each.pid for each in psutil.Process(process.pid).children(recursive=True)}


def kill_machine(process):
    """Kill ``process`` and all its children at once, as a loss of power does."""
    for number in (process.pid, *children_of(process)):
        os.kill(number, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_train_the_check_of_the_page(tmp_path):
    """The first check of the page ends, in two processes of one machine."""
    assert "distributed.processes=2" in CHECK
    assert "finished 40 steps" in follow(CHECK, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_machine_plays_both(tmp_path):
    """Given twice on one machine, the printed command trains one run, whose end `explain` tells."""
    script = printed_by(LAUNCH.removeprefix("holdfast "))
    port, folder = free_port(), tmp_path / "checked"
    both = [start(script, tmp_path, port) for _ in range(2)]
    try:
        assert [each.wait(timeout=300) for each in both] == [0, 0], (tmp_path / "log").read_text()
    finally:
        for each in both:
            if each.poll() is None:
                kill_machine(each)
    assert sorted(losses(folder)) == list(range(1, 401))
    assert "step 400 of 400" in follow(EXPLAIN, tmp_path)


def test_the_other_commands_are_job_files_and_a_check():
    """The rest of the page prints job files, which test_documented_job_files.py compares, and runs doctor."""
    words = [shlex.split(command)[1] for command in OTHERS]
    assert words == ["launch", "doctor", "launch"]
