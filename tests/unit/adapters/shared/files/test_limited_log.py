"""A log that a child process writes stays short, and its newest lines are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from holdfast.adapters.shared.files.json_lines import limit_log


@pytest.fixture
def log(tmp_path):
    """Return the descriptor of an empty log, open for appending."""
    descriptor = os.open(tmp_path / "log.txt", os.O_RDWR | os.O_APPEND | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def content(descriptor):
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


def test_a_short_log_stays_as_it_is(log):
    """A log of the permitted length is not changed."""
    os.write(log, b"one\ntwo\n")
    limit_log(log, 8)
    assert content(log) == "one\ntwo\n"


def test_the_last_lines_of_a_long_log_are_left(log):
    """The part of a line at the cut is removed too, and the log says that lines are missing."""
    os.write(log, b"".join(b"line %03d\n" % number for number in range(100)))
    limit_log(log, 30)
    assert content(log) == "[earlier lines were removed]\nline 097\nline 098\nline 099\n"


def test_one_long_line_keeps_its_end(log):
    """Progress bars are one line without an end: what was drawn last is left."""
    os.write(log, b"\r 1% |\r 2% |\r 3% |")
    limit_log(log, 6)
    assert content(log) == "[earlier lines were removed]\n\r 3% |"


def test_a_child_goes_on_behind_the_lines_that_are_left(log):
    """A child that has the file open writes on at its end, without a hole."""
    child = subprocess.Popen(
        [sys.executable, "-c", "input(); print('first' * 20); print('done', flush=True); input(); print('more')"],
        stdin=subprocess.PIPE,
        stdout=log,
        text=True,
    )
    child.stdin.write("\n")
    child.stdin.flush()
    try:
        deadline = time.monotonic() + 60
        while not content(log).endswith("done\n"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        limit_log(log, 10)
        child.communicate("\n")
    finally:
        child.kill()
    assert content(log) == "[earlier lines were removed]\ndone\nmore\n"
