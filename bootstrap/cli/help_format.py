"""The form of ``--help``: paragraphs as written, with headings and examples in color on a terminal."""

from __future__ import annotations

import argparse
import os
import re
import sys

from typing_extensions import override

_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_EXAMPLE = re.compile(r"^  (?:python -m (?:application|holdfast)|holdfast|eval) .*?(?=  +#|$)", re.MULTILINE)
_HEADING = re.compile(r"^\S.*:$", re.MULTILINE)


class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Prints descriptions and examples as they are written; in color on a terminal, but for ``NO_COLOR``."""

    @override
    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and _styled(heading, _BOLD))

    @override
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text(text, width, indent)
        if not has_color():
            return filled
        return _EXAMPLE.sub(_colored(_CYAN), _HEADING.sub(_colored(_BOLD), filled))


def has_color() -> bool:
    """Return whether help is printed in color: on a terminal, unless ``NO_COLOR`` is set or the terminal is dumb.

    From Python 3.14 on, argparse colors by itself.
    """
    if sys.version_info >= (3, 14) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _styled(text: str, style: str) -> str:
    return f"{style}{text}{_PLAIN}" if has_color() else text


def _colored(style: str) -> str:
    return f"{style}\\g<0>{_PLAIN}"
