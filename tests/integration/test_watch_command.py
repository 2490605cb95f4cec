"""The command that serves the live page, as a program."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from holdfast.bootstrap.web.serve import bind
from tests.support.command_line import ROOT, run_here
from tests.support.page_client import Client
from tests.support.run_folders import add_event, add_steps, hold, make_run


@pytest.fixture
def run(tmp_path):
    folder = make_run(tmp_path / "run")
    hold(folder)
    add_event(folder, "RunStarted", step=0, tokens=0, memory_limit=4 * 10**9)
    add_steps(folder, range(1, 301))
    return folder


@pytest.mark.parametrize("name", ["~nobody-of-this-name/run", "loop"])
def test_watch_names_a_folder_that_is_no_run(tmp_path, name):
    """The home of an unknown user and a link to itself are no run folders."""
    (tmp_path / "loop").symlink_to("loop")
    process = run_here("watch", name, cwd=tmp_path)
    assert (process.returncode, "Traceback" in process.stderr) == (4, False)
    assert f"{name} is not a run folder" in process.stderr


@contextmanager
def watching(folder, *options):
    """Run ``watch`` as a program, and give it with the first line that it prints."""
    command = [sys.executable, "-m", "holdfast", "watch", str(folder), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_watch_prints_its_address_and_ends_with_ctrl_c(run):
    """The command prints the link, answers there, and Ctrl-C ends it at once with code 0, also with open pages."""
    with watching(run, "--port", "0") as (process, line):
        assert line.startswith("page: http://127.0.0.1:")
        client = Client(int(line.split("/")[2].split(":")[1]))
        with client.stream() as states:
            assert next(states)[1]["runs"][0]["step"] == 300
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert process.stdout.read() == ""


def test_watch_ends_with_its_input(run):
    """The page of the monitor ends when the process that started it has ended, however it ended."""
    with watching(run, "--port", "0", "--with-input") as (process, line):
        assert line.startswith("page: http://127.0.0.1:")
        process.stdin.close()
        assert process.wait(60) == 0


def test_watch_opens_as_many_files_as_the_system_allows(run):
    """The usual limit of open files, which may be raised, does not limit the number of runs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
    try:
        with watching(run) as (process, line):
            assert line.startswith("page: ")
            assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_watch_refuses_other_machines_without_a_token(run):
    """An address that others reach ends the command with code 2 and the remedy."""
    process = run_here("watch", str(run), "--host", "0.0.0.0", "--port", "0", cwd=run)
    assert process.returncode == 2
    assert "--token-from new" in process.stderr


def test_watch_names_a_port_that_is_taken(run):
    """A port of another program ends the command with code 2."""
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        process = run_here("watch", str(run), "--port", str(port), cwd=run)
    assert process.returncode == 2
    assert f"another program has port {port} of 127.0.0.1" in process.stderr
