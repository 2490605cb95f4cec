"""How a command tells the shell what ended it."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.process.exit_codes import guarded
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
