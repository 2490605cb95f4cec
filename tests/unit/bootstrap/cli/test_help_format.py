"""The help of the command line: groups of commands, examples, and color on a terminal."""

import re
import sys
from io import StringIO

import pytest

from holdfast.bootstrap.cli import arguments as help_format
from holdfast.bootstrap.cli.main import _parser, main

needs_own_color = pytest.mark.skipif(sys.version_info >= (3, 14), reason="argparse colors by itself")


class Terminal(StringIO):
    def isatty(self):
        return True


def help_of(monkeypatch, stream, *words):
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*words, "--help"])
    return stream.getvalue()


def test_each_command_is_in_one_group(monkeypatch):
    """The first help lists each command once, below the title of its group, and the first commands to try."""
    text = help_of(monkeypatch, StringIO())
    (commands,) = (action.choices for action in _parser()[0]._actions if action.choices)
    listed = re.findall(r"^  ([a-z][\w-]+) {2,}\w", text.partition("\nfirst steps:")[0], re.MULTILINE)
    assert sorted(listed) == sorted(commands)
    assert "\ntrain:\n  train " in text
    assert "\x1b" not in text


def test_each_command_shows_examples(monkeypatch):
    """The help of each command has at least one line that can be typed."""
    (commands,) = (action.choices for action in _parser()[0]._actions if action.choices)
    without = [name for name, command in commands.items() if "example" not in command.format_help()]
    assert without == []
    assert commands


@needs_own_color
def test_headings_and_examples_have_color_on_a_terminal(monkeypatch):
    """Headings are bold and examples colored, and without the codes the text is that of a pipe."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colored = help_of(monkeypatch, Terminal(), "init")
    assert "\x1b[1mexamples:\x1b[0m" in colored
    assert f"\x1b[36m  {' '.join(help_format_words())} init own_text\x1b[0m" in colored
    plain = help_of(monkeypatch, StringIO(), "init")
    assert re.sub(r"\x1b\[\d*m", "", colored) == plain != colored


def help_format_words():
    from holdfast.bootstrap.process.program import called_as

    return called_as()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_color_can_be_switched_off(monkeypatch, name, value):
    """``NO_COLOR`` and a dumb terminal get plain text, as a pipe does."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert help_format.has_color() is (sys.version_info < (3, 14))
    monkeypatch.setenv(name, value)
    assert not help_format.has_color()
