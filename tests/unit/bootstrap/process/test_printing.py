"""Lines for a person on a standard stream."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from holdfast.bootstrap.process.printing import as_error, print_line, report_line, short, unread_output_dropped, visible

TEXT = "a\tb\n\x1b[2J\x9b\x07é"


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\tb\n␛[2J�␇é"), (False, TEXT)])
def test_control_characters_of_a_text_do_not_reach_a_terminal(monkeypatch, is_terminal, shown):
    """A text of a model shows its control characters in a terminal, and is unchanged in a file or a pipe."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    assert visible(TEXT) == shown


def test_control_characters_of_an_error_do_not_reach_a_terminal(monkeypatch, capsys):
    """An error may name what a file that is anybody's holds: only its colour is the program's."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    report_line("the template says \x1b]0;x\x07")
    assert capsys.readouterr().err == "the template says ␛]0;x␇\n"
    assert as_error("the template says \x1b[2J") == "the template says ␛[2J"


def test_a_path_is_shown_as_seen_from_the_current_folder(tmp_path, monkeypatch):
    """A path below the current folder is shown from there, and another one, or one without such a folder, as it is."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert short(f"{here}/runs/a") == "runs/a"
    assert short(f"{tmp_path}/a") == f"{tmp_path}/a"
    here.rmdir()
    assert short(f"{here}/runs/a") == f"{here}/runs/a"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
def test_a_full_disk_ends_the_output_of_a_run_and_not_the_run(monkeypatch, capfd):
    """The lines of a run are dropped once their disk is full, which is said once on standard error."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        print_line("finished 6 steps")
        print_line("the losses")
    assert capfd.readouterr().err == (
        "warning: standard output cannot be written, no space left on device: free some space there; "
        "the rest of the output is left out\n"
    )


def test_an_output_that_cannot_be_written_to_ends_the_output_of_a_run_and_not_the_run(monkeypatch, capfd):
    """A standard output that is open for reading only, as by ``1</dev/null``, is one that takes no more."""
    with Path(os.devnull).open("w", encoding="utf-8") as output, Path(os.devnull).open("rb") as input_only:
        os.dup2(input_only.fileno(), output.fileno())
        monkeypatch.setattr(sys, "stdout", output)
        print_line("finished 6 steps")
        print_line("the losses")
    assert capfd.readouterr().err == (
        "warning: standard output cannot be written, bad file descriptor: open it for writing; "
        "the rest of the output is left out\n"
    )


def test_a_disk_that_is_full_for_a_moment_ends_the_output_of_a_run_and_not_the_run(capfd):
    """A write that fails once ends the output, although the next one would be let; another error is raised."""
    with unread_output_dropped():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "no space left on device: free some space" in capfd.readouterr().err
    with pytest.raises(FileNotFoundError), unread_output_dropped():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
