"""How a process of the command line ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ENDING = """
import atexit, os, sys, types
from bootstrap.cli import end_with

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
