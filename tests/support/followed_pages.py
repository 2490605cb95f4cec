"""Pages of the documentation that a test follows: the files and commands that they print, and a shell for a reader."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import ROOT, environment

_FILE = re.compile(r"^`(?P<name>[\w./-]+)`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
PATH_OF_READER = f"{ROOT / 'tests/support/programs'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
"""Where a shell finds ``holdfast``, also if this tree is not installed, and the programs of this installation."""


def text_of(page: str) -> str:
    """Return the text of ``page``, of one section if it is ``PAGE#heading of the section``."""
    path, _, heading = page.partition("#")
    text = (ROOT / path).read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].partition("\n## ")[0] if heading else text


def files_of(page: str) -> dict[str, str]:
    """Return the files that ``page`` has the reader write, by their names."""
    return {file["name"]: file["text"] for file in _FILE.finditer(text_of(page))}


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files of ``page`` into ``folder``; return their names."""
    for name, text in files_of(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files_of(page))


def commands_of(page: str) -> list[str]:
    """Return each line of the blocks of ``page`` that name no language, in order; a continued line is one."""
    blocks = (block["lines"] for block in _BLOCK.finditer(text_of(page)) if not block["language"])
    lines = (line for block in blocks for line in block.replace("\\\n", " ").splitlines())
    return [" ".join(line.split()) for line in lines if line]


def of_reader(folder: Path) -> dict[str, str]:
    """Return the environment of a reader whose home is ``folder``, with the programs of this installation."""
    kept = {name: value for name, value in environment().items() if name != "XDG_CACHE_HOME"}
    return kept | {"HOME": str(folder), "PATH": PATH_OF_READER}


def follow(command: str, folder: Path, *, code: int = 0, **variables: str) -> str:
    """Run ``command`` as a shell does in ``folder``; return what it prints, and raise unless it ends with ``code``."""
    process = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=of_reader(folder) | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == code, f"{command}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
    return process.stdout + process.stderr
