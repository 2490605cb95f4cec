"""The commands that the documentation prints, taken from its files."""

from __future__ import annotations

import itertools
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

import yaml

from holdfast.bootstrap.cli.main import _parser
from tests.support.command_line import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
_PROGRAM = re.compile(
    r"(\w+=\S+ )*(holdfast(?= )|python|pip|openssl|torchrun|srun|accelerate|make|pytest|pre-commit|cp|export)\b.* .*"
    r"|HOLDFAST_\w+__\w+=.*|(\w+=.*)?(holdfast|python -m (application|holdfast)) .*"
)
CALL = re.compile(r"(?:^|(?<=[ (]))(?:\S*python -m (?:application|holdfast)|-m holdfast|holdfast)(?= |$)")
"""The words of a command that call this program."""
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STANDS_FOR_ANOTHER = re.compile(r"(?<![\w$/])([A-Z]{2,}|N)(?![\w=])|/NAME\b|\.\.\.")
_SPAN = re.compile(r"`([^`]+)`")
_COMMANDS = {name: parser for action in _parser()[0]._actions for name, parser in (action.choices or {}).items()}
_CALLED = set(_COMMANDS)
_NAMES_OF_TWO_WORDS = {
    f"{name} {second}"
    for name, parser in _COMMANDS.items()
    for action in parser._actions
    if isinstance(action.choices, dict)
    for second in action.choices
}
"""Commands that a sentence may name without their arguments, such as ``data profile``."""


class Printed(NamedTuple):
    """A command and where it stands; ``is_block`` tells those of code blocks from those in sentences and tables."""

    page: str
    line: int
    text: str
    is_block: bool

    @property
    def is_short(self) -> bool:
        """Return whether the command begins with its own name, as in a sentence."""
        return not self.is_block and self.text.partition(" ")[0] in _CALLED

    @property
    def is_complete(self) -> bool:
        """Return whether no word of it stands for another."""
        return _STANDS_FOR_ANOTHER.search(self.text) is None


def printed() -> Iterator[Printed]:
    """Yield each command of each page, in order; what goes on over several lines is one."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        found = [*_in_blocks(page, text), *_in_sentences(page, _FENCED.sub(_blank, text))]
        yield from sorted(found, key=lambda each: each.line)


def words_of(text: str) -> list[str]:
    """Return the arguments of this program in ``text``, with something in place of what N stands for."""
    program = CALL.search(text)
    words = shlex.split(text[program.end() :] if program else text, comments=True)
    own = itertools.takewhile(lambda word: word not in {"&&", ">"}, words)
    known = (word for word in own if word != "..." and not word.startswith("["))
    return ["1" if word in {"N", "STEP"} else word for word in known]


def _in_blocks(page: str, text: str) -> Iterator[Printed]:
    for block in _FENCED.finditer(text):
        first = text.count("\n", 0, block.start()) + 2
        if block[1] == "yaml":
            yield from (Printed(page, first, each, is_block=True) for each in _strings([*yaml.safe_load_all(block[2])]))
        elif block[1] in {"", "bash"}:
            yield from _lines(page, first, block[2])
    for number, line in enumerate(_FENCED.sub(_blank, text).splitlines(), 1):
        if line.startswith("    "):
            yield from _lines(page, number, line.strip())


def _lines(page: str, first: int, text: str) -> Iterator[Printed]:
    joined = re.sub(r"\\\n\s*", "\\\n", text)
    for line in re.finditer(r"(?:\\\n|.)+", joined):
        command = line[0].replace("\\\n", "")
        if _PROGRAM.fullmatch(command):
            yield Printed(page, first + joined.count("\n", 0, line.start()), command, is_block=True)


def _in_sentences(page: str, text: str) -> Iterator[Printed]:
    for span in _SPAN.finditer(text):
        command = " ".join(span[1].split())
        first, _, others = command.partition(" ")
        is_named_only = command in _NAMES_OF_TWO_WORDS
        if not is_named_only and (_PROGRAM.fullmatch(command) or (first in _CALLED and others)):
            yield Printed(page, text.count("\n", 0, span.start()) + 1, command, is_block=False)


def _strings(value: object) -> Iterator[str]:
    """Yield each command within a YAML document."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from _strings(part)
    if isinstance(value, str) and _PROGRAM.fullmatch(value):
        yield value


def _blank(block: re.Match[str]) -> str:
    return "\n" * block[0].count("\n")
