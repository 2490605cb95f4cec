"""How a process of the command line ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ENDING = """
import atexit, os, sys, types
from holdfast.bootstrap.process.exit_codes import end_with

class TornDown:
    def __init__(self, abort=os.abort): self.abort = abort
    def __del__(self): self.abort()

distributed = sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
distributed.is_initialized = lambda: sys.argv[1] == "in a group"
distributed.group = TornDown()

def command():
    atexit.register(print, "registered")
    print("told", end=" ")
    if sys.argv[2] == "raises":
        sys.exit(75)
    return 75

end_with(command)
"""


@pytest.mark.parametrize("ending", ["returns", "raises"])
@pytest.mark.parametrize(("group", "expected"), [("in a group", 75), ("alone", -signal.SIGABRT)])
def test_a_group_that_is_left_does_not_abort_the_end(group, expected, ending):
    """A rank whose libraries abort a torn down interpreter ends with its own code, after all that is registered."""
    root = str(Path(__file__).parents[2])
    outcome = subprocess.run(
        [sys.executable, "-c", ENDING, group, ending],
        env=os.environ | {"PYTHONPATH": root}, text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (outcome.returncode, outcome.stdout) == (expected, "told registered\n"), outcome.stderr


READING = """
import atexit, threading, time
from holdfast.application.data.prefetch import Prefetch
from holdfast.bootstrap.process import exit_codes

def items():
    started.set()
    {body}
    yield 1

def command():
    reading = Prefetch(items(), depth=1)
    started.wait()
    return 7

started = threading.Event()
exit_codes._PARTING_SECONDS = {seconds}
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))  # called last of all
exit_codes.end_with(command)
"""


@pytest.mark.parametrize(
    ("body", "seconds", "left"),
    [
        ("time.sleep(0.5)", 60.0, "['MainThread']\n"),
        ("threading.Event().wait()", 0.2, ""),  # the interpreter is not torn down at all
    ],
)
def test_the_interpreter_is_not_torn_down_under_a_thread_of_ours(body, seconds, left):
    """A command ends with its code once its threads have ended, and if one hangs without them, but never under them."""
    outcome = subprocess.run(
        [sys.executable, "-c", READING.format(body=body, seconds=seconds)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout) == (7, left), outcome.stderr
