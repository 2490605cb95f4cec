"""The words that called this program."""

from __future__ import annotations

import sys
from pathlib import Path

_MODULE = ("python", "-m", "application")
_COMMAND = "holdfast"


def called_as() -> tuple[str, ...]:
    """Return the words that call this program again: ``holdfast`` or ``python -m`` with the module that did."""
    program = Path(sys.argv[0])
    if program.stem == _COMMAND:
        return (_COMMAND,)
    return (*_MODULE[:2], _COMMAND) if program.parent.name == _COMMAND else _MODULE


def module_called() -> str:
    """Return the module that starts this program in another process: the one that did, so that both print its name."""
    return _MODULE[2] if Path(sys.argv[0]).parent.name == _MODULE[2] else _COMMAND


def in_words_of_caller(text: str) -> str:
    """Return ``text`` with the program called as it was."""
    return text.replace(" ".join(_MODULE), " ".join(called_as()))
