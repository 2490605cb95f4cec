"""The page on two machines: the launch that it prints, with one machine that plays both parts."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess

import psutil
import pytest

from tests.support.command_line import losses, wait_for_step
from tests.support.documented_job_files import printed_by
from tests.support.followed_pages import commands_of, follow, of_reader

PAGE = "docs/two-nodes.md"
CHECK, LAUNCH, HEAD, *OTHERS = commands_of(PAGE)


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


def kill_machine(process):
    """Kill ``process`` and all its children at once, as a loss of power does."""
    both = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in both:
        os.kill(each.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_train_the_check_of_the_page(tmp_path):
    """The first check of the page ends, in two processes of one machine."""
    assert "distributed.processes=2" in CHECK
    assert "finished 40 steps" in follow(CHECK, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_machine_plays_both_and_loses_one(tmp_path):
    """After the death of one, the other saves and ends with a code for another start; both go on with no step twice."""
    command = LAUNCH.removeprefix("python -m application ")
    script = printed_by(command)
    port, folder = free_port(), tmp_path / "checked"
    first, second = (start(script, tmp_path, port) for _ in range(2))
    try:
        wait_for_step(folder, 30, first, 150)
        kill_machine(second)
        code = first.wait(timeout=120)
        log = (tmp_path / "log").read_text()
        assert code not in (0, 2, 3, 129, 130, 143), log
        shown = follow(f"python -m application explain {folder}", tmp_path)
        assert "failed" in shown or "stopped" in shown or "killed" in shown
        again = [start(script, tmp_path, port) for _ in range(2)]
        assert [process.wait(timeout=200) for process in again] == [0, 0], (tmp_path / "log").read_text()
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    assert sorted(losses(folder)) == list(range(1, 401))


def test_the_other_commands_are_job_files_and_a_check():
    """The rest of the page prints job files, which test_documented_job_files.py compares, and runs doctor."""
    words = [shlex.split(command)[3] for command in OTHERS]
    assert words == ["launch", "doctor", "launch"]
