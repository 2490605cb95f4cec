"""How this program was called."""

from __future__ import annotations

import sys
from pathlib import Path

_MODULE = ("python", "-m", "application")


def called_as() -> tuple[str, ...]:
    """Return the words that call this program again: ``holdfast`` where that did, else the module."""
    return ("holdfast",) if Path(sys.argv[0]).stem == "holdfast" else _MODULE


def in_words_of_caller(text: str) -> str:
    """Return ``text`` with the program called as it was."""
    return text.replace(" ".join(_MODULE), " ".join(called_as()))
