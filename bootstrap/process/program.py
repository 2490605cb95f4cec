"""The command by which this program was called."""

from __future__ import annotations

import sys
from pathlib import Path

_MODULE = ("python", "-m", "application")
_COMMAND = "holdfast"


def called_as() -> tuple[str, ...]:
    """Return the words that call this program again: ``holdfast``, or ``python -m`` with the module that was called."""
    program = Path(sys.argv[0])
    if program.stem == _COMMAND:
        return (_COMMAND,)
    return (*_MODULE[:2], _COMMAND) if program.parent.name == _COMMAND else _MODULE


def module_called() -> str:
    """Return the module to start in another process: the one that was called, so that both print the same name."""
    return _MODULE[2] if Path(sys.argv[0]).parent.name == _MODULE[2] else _COMMAND


def in_words_of_caller(text: str) -> str:
    """Return ``text`` with the command of its examples replaced by the command that was called."""
    return text.replace(" ".join(_MODULE), " ".join(called_as()))
