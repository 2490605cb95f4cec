"""How a command tells the shell what ended it."""

from __future__ import annotations

import pytest

from bootstrap.cli import guarded
from domain.errors import ConfigurationError, DataError, RestartNeeded, StateError, TokensLost, TrainingError


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
