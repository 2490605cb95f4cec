"""The tab key in real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 60.0
START = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}
SET_UP = {
    "bash": 'eval "$(holdfast completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u; eval "$(holdfast completion zsh)"',
}
CONTROL = re.compile(r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[()=>][A-Z0-9]?|\][^\x07]*\x07)")


def place_of(folder):
    """Return the variables of a shell whose home is ``folder`` and that finds holdfast."""
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": found, "TERM": "dumb", "HOME": str(folder), "XDG_DATA_HOME": str(folder)}


class Shell:
    """An interactive shell on a pseudo terminal."""

    def __init__(self, name, folder):
        self._side, other = pty.openpty()
        place = place_of(folder) | {"PS1": "$ "}
        self._process = subprocess.Popen(
            [name, *START[name]], cwd=folder, env=place, stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        os.close(other)
        self.text = ""

    def types(self, words):
        """Send ``words`` as keys."""
        os.write(self._side, words.encode())

    def shows(self, words):
        """Read until ``words`` are there."""
        until = time.monotonic() + SECONDS
        while words not in self.text:
            assert time.monotonic() < until, self.text[-1500:]
            if select.select([self._side], [], [], 0.2)[0]:
                self.text += CONTROL.sub("", os.read(self._side, 65536).decode(errors="ignore"))
        return True

    def close(self):
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._side)


def needs(shell):
    """Skip the test without ``shell``."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture(params=START)
def shell(request, tmp_path):
    """Return a shell that completes holdfast."""
    needs(request.param)
    opened = Shell(request.param, tmp_path)
    try:
        opened.types(f"{SET_UP[request.param]}\necho rea''dy\n")
        opened.shows("ready")
        yield opened
    finally:
        opened.close()


def test_settings_and_their_values_are_completed(shell):
    """A setting goes on to its =, and its value to the one that begins so."""
    shell.types("holdfast train optimizer.alg\t")
    assert shell.shows("optimizer.algorithm=")
    shell.types("mu\t")
    assert shell.shows("muon")


def test_commands_are_completed(shell):
    """A command goes on to the only one that begins so."""
    shell.types("holdfast verify-r\t")
    assert shell.shows("verify-resume")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("holdfast train optimizer.alg", "optimizer.algorithm="),
        ("holdfast train optimizer.algorithm=mu", "optimizer.algorithm=muon"),
        ("holdfast train --config chat_l", "chat_lora"),
        ("holdfast verify-r", "verify-resume"),
    ],
)
def test_fish_completes_them_too(tmp_path, typed, offered):
    """Fish, which tells by a command how it would complete a line, offers the same."""
    needs("fish")
    code = f"holdfast completion fish | source; complete -C '{typed}'"
    told = subprocess.run(
        ["fish", "--no-config", "-c", code],
        env=place_of(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split("\n")[0].split("\t")[0].strip() == offered
