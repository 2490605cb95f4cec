"""The exit codes of errors and signals, and what they mean for a restart."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.bootstrap.process.exit_codes import cause_of, code_of_child, ending_of, guarded
from holdfast.bootstrap.run_folder.post_mortem import write_before_training
from holdfast.domain.errors import (
    ConfigurationError,
    DataError,
    PluginFailed,
    RestartNeeded,
    StateError,
    TokensLost,
    TrainingError,
)
from holdfast.domain.fault_tolerance.restart_policy import Ending


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("no"), 2),
        (DataError("no"), 3),
        (StateError("no"), 4),
        (RestartNeeded("no"), 75),
        (TokensLost("no"), 75),
        (TrainingError("no"), 1),
        (KeyError("no"), 1),
    ],
)
def test_each_error_has_its_exit_code(error, code, capsys):
    """What ended a command is its exit code and one sentence on standard error."""

    def command():
        raise error

    assert guarded(command) == code
    assert "no" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EMFILE])
def test_a_path_that_the_system_refuses_is_one_sentence(number, capsys):
    """A folder of another user, a name that is too long, and a link to itself are no bug that a user should report."""

    def command():
        raise OSError(number, os.strerror(number), "/private/run.json")

    assert guarded(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: /private/run.json cannot be used, ")
    assert ("check the disk" in line) is (number == errno.EIO)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (MemoryError(), "too little memory: free some, raise the limit"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "too little memory: free some, raise the limit"),
        (
            OSError(errno.EIO, os.strerror(errno.EIO)),
            "could not be written or read, input/output error: check the disk",
        ),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "could not be written or read, no space left on device"),
        (RuntimeError("can't start new thread"), r"no further thread: raise its limit of memory \(ulimit -v\)"),
    ],
)
def test_a_limit_of_the_system_is_one_sentence(error, remedy, capsys):
    """A process without memory or disk, or that may start no thread, is told what to change."""

    def command():
        raise error

    assert guarded(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(remedy, line)


def test_a_machine_without_temporary_files_is_one_sentence(monkeypatch, capsys):
    """Where no folder for temporary files can be written, a command names the folders it tried and the variable."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/away", "/gone"])
    assert guarded(lambda: len(tempfile.mkdtemp())) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"temporary files .*\(tried /away, /gone\): set .*TMPDIR", line)


def test_a_note_of_another_package_is_no_place(tmp_path, capsys):
    """Only the folder with the traceback is told as its place, whatever notes others put on an exception."""
    error = PluginFailed("the loss mine:loss failed: no")
    error.add_note("hint: use another loss")

    def command():
        raise error

    assert guarded(command) == 2
    assert capsys.readouterr().err == "error: the loss mine:loss failed: no\n"
    write_before_training(tmp_path, error)
    assert guarded(command) == 2
    (file,) = tmp_path.glob("post-mortem/*/rank0/traceback.txt")
    assert capsys.readouterr().err.endswith(f"; its traceback is in {file.parent}\n")


@pytest.mark.parametrize("code", [0, 2, 3, 129, 130, 138, 143])
def test_a_run_that_ended_for_good_is_final(code):
    """A finished run, a user's mistake and a run that a signal stopped with a checkpoint saved are final."""
    assert ending_of(code) is Ending.FINAL


@pytest.mark.parametrize("code", [1, 4, 134, 137, 139])
def test_any_other_code_is_a_crash(code):
    """A code that no command gives on purpose, and that of a damaged run folder, count as a crash."""
    assert ending_of(code) is Ending.CRASHED


def test_a_run_may_ask_for_a_new_process():
    """Code 75 asks for a restart."""
    assert ending_of(75) is Ending.RESTART_NEEDED


def test_a_child_that_a_signal_killed_has_the_code_of_a_shell():
    """The negative number that Python gives becomes 128 and the signal's number, which is named in words."""
    assert code_of_child(3) == 3
    assert code_of_child(-signal.SIGKILL) == 137
    assert cause_of(137) == "was killed by SIGKILL"
    assert cause_of(1) == "failed with code 1"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
@pytest.mark.parametrize("how", ["line_buffering", "write_through", "neither"])
@pytest.mark.parametrize("ends_by", ["return", "exit"])
@pytest.mark.parametrize("size", [1, 10_000])
def test_output_that_cannot_be_written_is_one_sentence(how, ends_by, size, monkeypatch, capfd):
    """A command whose output is lost, as its disk is full, fails with a sentence, and Python adds no complaint."""

    def command():
        sys.stdout.write("what was asked for" * size)
        return 0 if ends_by == "return" else sys.exit(0)

    with Path("/dev/full").open("w", encoding="utf-8") as full:
        full.reconfigure(line_buffering=how == "line_buffering", write_through=how == "write_through")
        monkeypatch.setattr(sys, "stdout", full)
        assert guarded(command) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "error: standard output cannot be written, no space left on device: free some space there"
