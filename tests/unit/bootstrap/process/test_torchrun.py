"""torchrun with the exit codes of its processes."""

from __future__ import annotations

import signal
import socket
import threading
import time

import pytest

from holdfast.bootstrap.process.torchrun import await_name, ending_without_processes, torchrun, torchrun_parser
from holdfast.domain.errors import RestartNeeded

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT]
STUBBORN = """
import os, signal, time
from pathlib import Path
is_deaf = Path(__file__).with_name("deaf")
if os.environ["RANK"] == "0":
    while not is_deaf.exists():
        time.sleep(0.05)
    raise SystemExit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
is_deaf.touch()
time.sleep(300)
"""


@pytest.mark.parametrize("code", [0, 2, 75])
def test_the_code_of_a_process_is_that_of_torchrun(code, tmp_path):
    """A scheduler sees the code with which the process ended, not torchrun's 1, and handlers of signals stay."""
    before = [signal.getsignal(number) for number in SIGNALS]
    (tmp_path / "end.py").write_text(f"import sys; sys.exit({code})")
    assert torchrun(["--standalone", "--nproc-per-node", "1", str(tmp_path / "end.py")]) == code
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_process_that_is_stopped_has_the_time_that_is_asked_for(tmp_path, monkeypatch):
    """A process that takes longer to end than the time limit of the option is killed, whichever torch there is."""
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1000")  # longer than a test may take
    (tmp_path / "sleep.py").write_text(STUBBORN)
    options = ["--standalone", "--nproc-per-node", "2", "--shutdown-timeout", "1"]
    assert torchrun([*options, str(tmp_path / "sleep.py")]) == 3


@pytest.mark.parametrize(
    ("variables", "arguments", "seconds"),
    [
        ({}, [], 30),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "40"}, [], 40),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "40", "PET_SHUTDOWN_TIMEOUT": "50"}, [], 50),
        ({"PET_SHUTDOWN_TIMEOUT": "50"}, ["--shutdown-timeout=60"], 60),
    ],
)
def test_the_variables_of_torchrun_hold(monkeypatch, variables, arguments, seconds):
    """The time limit is that of the option, else of torchrun's own variables, else 30 seconds."""
    for name in ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "PET_SHUTDOWN_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    options = torchrun_parser().parse_args([*arguments, "end.py"])

    assert options.shutdown_timeout == seconds
    assert "SIGUSR1" in options.signals_to_handle


def test_machines_that_are_not_found_need_a_new_start(tmp_path):
    """A machine whose partner does not come is told by one sentence, and its scheduler starts it again."""
    (tmp_path / "end.py").write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    meeting = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "x"]
    with pytest.raises(RestartNeeded, match=endpoint):
        torchrun([*meeting, "--rdzv-conf", "join_timeout=1,last_call_timeout=1", str(tmp_path / "end.py")])


def test_a_name_is_awaited():
    """A name that becomes known is found, and one that does not is given up after the time limit."""
    answers = iter([socket.gaierror, None])

    def look_up(*_):
        if (answer := next(answers, socket.gaierror)) is not None:
            raise answer

    assert await_name("pod-0.pods", look_up=look_up, seconds=30)
    assert not await_name("pod-0.pods", look_up=look_up, seconds=0)


def test_a_machine_that_is_cut_off_ends():
    """Once its processes are gone for longer than any wait for others may take, the program asks for another start."""
    ended, states = [], iter([[], ["running", "sleeping"], ["running", "zombie"], []])
    is_over = threading.Event()

    def end(code):
        ended.append(code)
        is_over.set()

    with ending_without_processes(0.05, states=lambda: next(states, []), end=end, look_seconds=0.01):
        assert is_over.wait(60)
    assert ended == [75]
    assert next(states, None) is None


def test_a_process_that_torchrun_does_not_look_at_is_enough(monkeypatch):
    """While torchrun waits for another machine it does not see that its process has ended, so the wait is shorter."""
    monkeypatch.setattr("holdfast.bootstrap.process.torchrun._UNSEEN_SECONDS", 0.05)
    is_over = threading.Event()
    with ending_without_processes(100, states=lambda: ["zombie"], end=lambda _: is_over.set(), look_seconds=0.01):
        assert is_over.wait(60)


def test_a_machine_whose_processes_run_goes_on():
    """As long as there are processes, and behind the block, nothing is ended."""
    looks = []
    with ending_without_processes(
        0.0, states=lambda: looks.append(1) or ["running"], end=pytest.fail, look_seconds=0.001
    ):
        while len(looks) < 5:
            time.sleep(0.001)
    assert not [thread for thread in threading.enumerate() if thread.name == "processes watch"]
