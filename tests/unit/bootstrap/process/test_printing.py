"""Lines for a person on a standard stream."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.process.printing import visible

TEXT = "a\tb\n\x1b[2J\x9b\x07é"


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\tb\n␛[2J�␇é"), (False, TEXT)])
def test_control_characters_of_a_text_do_not_reach_a_terminal(monkeypatch, is_terminal, shown):
    """A text of a model shows its control characters in a terminal, and is unchanged in a file or a pipe."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    assert visible(TEXT) == shown
