"""The instructions of the repository's Dockerfile."""

from __future__ import annotations

import fnmatch
import re
import shlex
from typing import NamedTuple

from tests.support.installations import ROOT


class Instruction(NamedTuple):
    """An instruction of a Dockerfile: its name, its text, and the number of its stage, which counts from 0."""

    name: str
    text: str
    stage: int


def instructions() -> list[Instruction]:
    """Return the instructions in order; those before the first stage have the number -1."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found, stage = [], -1
    for line in filter(None, re.sub(r"\\\n\s*", " ", text).splitlines()):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        found.append(Instruction(name, rest, stage))
    return found


def arguments() -> dict[str, str]:
    """Return the default of each build argument."""
    pairs = (each.text.partition("=") for each in instructions() if each.name == "ARG")
    return {name: default for name, _, default in pairs}


def variables() -> dict[str, str]:
    """Return the environment variables of the image."""
    words = (word for each in instructions() if each.name == "ENV" for word in shlex.split(each.text))
    return dict(word.split("=", 1) for word in words)


def copied() -> list[str]:
    """Return the files and folders of the repository that are copied into the first stage."""
    return [word for each in instructions() if each.name == "COPY" for word in each.text.split()[:-1]]


def is_sent(path: str) -> bool:
    """Return whether .dockerignore lets ``path`` of the repository reach the builder: its last match decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip().removeprefix("!")
        parts = path.split("/")
        heads = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
        names = heads if "**/" not in pattern else parts
        if pattern and not line.startswith("#") and fnmatch.filter(names, pattern.removeprefix("**/")):
            sent = line.startswith("!")
    return sent
