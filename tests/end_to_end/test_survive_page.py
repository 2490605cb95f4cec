"""The tutorial of drills, followed word for word in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess

import pytest

from tests.support.command_line import wait_for_checkpoint
from tests.support.followed_pages import commands_of, follow, of_reader, write_files

PAGE = "docs/survive.md"
CODES = {"inspect runs/killed": 4}
"""Exit codes other than 0 that the page announces."""
DRILLS = [line for line in commands_of(PAGE) if " verify-resume " in line or " drill " in line]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_drills_of_the_page_are_survived(tmp_path):
    """The run of the page resumes bit for bit, and survives each fault that ``drill all`` injects."""
    write_files(PAGE, tmp_path)
    proof, drills = (follow(command, tmp_path) for command in DRILLS)
    assert "bit for bit: 6 steps, killed after step" in proof
    lines = [line for line in drills.splitlines() if "survived · " in line]
    assert {line.partition(":")[0] for line in lines} >= {"kill", "oom", "full-disk", "hang"}
    assert "NOT SURVIVED" not in drills


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_kill_and_a_damaged_checkpoint_cost_steps_only(tmp_path):
    """Killed by the number that ``explain`` shows, the run ends with the same weights; damage is found and avoided."""
    assert write_files(PAGE, tmp_path) == ["small.yaml", "damage.py"]
    commands = [command for command in commands_of(PAGE) if command not in DRILLS]
    train = "holdfast train --config small.yaml run.name="
    assert commands[:5] == [
        f"{train}undisturbed",
        f"{train}killed",
        "holdfast explain runs/killed",
        "kill -9 12252",
        "holdfast explain runs/killed",
    ]
    follow(commands[0], tmp_path)
    kill_as_told(commands[1], commands[2], tmp_path)
    outputs = []
    for command in commands[4:]:
        code = next((code for part, code in CODES.items() if part in command), 0)
        outputs.append(follow(command, tmp_path, code=code))
    killed, resumed, same, _, inspected, quarantined, explained = outputs
    assert "runs/killed · crashed · step " in killed
    assert re.search(r"resumed at step \d+0\b", resumed)
    assert same == ""
    assert "500" in inspected
    assert "resumed at step 450" in quarantined
    assert list((tmp_path / "runs/killed/quarantine").iterdir())
    assert "1 checkpoint damaged and quarantined" in explained
    assert "started 3 times, at steps 0, " in explained


def kill_as_told(train, explain, folder):
    """Start the command ``train``, and kill the process whose number ``explain`` shows after its third checkpoint."""
    process = subprocess.Popen(
        shlex.split(train), cwd=folder, env=of_reader(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_checkpoint(folder / "runs/killed", 150, process)
        shown = re.search(r"trained by process (\d+) on ", follow(explain, folder))
        assert int(shown[1]) == process.pid
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
