"""The tutorial on data, followed word for word in an empty folder."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import ROOT, environment
from tests.support.followed_pages import PATH_OF_READER
from tests.support.printed_commands import printed

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "docs/data-tutorial.md"
_FILE = re.compile(r"^`(?P<name>\w+\.(?:py|yaml))`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
ENDS_WITH = {"--fail-on drift": 3}
"""Exit codes other than 0 that the page announces, by a part of the command."""
PROMISED = {
    "prepare --config small.yaml --config march.yaml --config rules.yaml": [
        "dedup.minhash",
        "validation.text.min_length",
        "validation.url.missing",
    ],
    "data validate": ["validation.url.pattern", "the data pass"],
    "data rejects": ["validation.outliers.repetition", "used with a warning:"],
    "data diff tokens/raw": ["+ validation", "+ dedup"],
    "samples runs/march --document": ["document 7b89c9effd41aad8 was in "],
    "data compare": ["major drift: ", "share of non-ASCII bytes (major"],
    "python ask.py": ["march, epoch 1: steps 1 to "],
    "holdfast runs": ["march", "finished"],
}
"""Parts of what each command prints, whatever version of Python wrote the documentation of its library."""


def follow(command: str, folder: Path) -> str:
    """Run ``command`` as a shell does, with a home of its own; return what it prints."""
    own = {"HOME": str(folder), "PATH": PATH_OF_READER}
    process = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment() | own,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    expected = next((code for part, code in ENDS_WITH.items() if part in command), 0)
    assert process.returncode == expected, f"{command}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
    return process.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorial_works_word_for_word(tmp_path):
    """Each file is written and each command run in the order of the page; the excluded document is seen no more."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    files = list(_FILE.finditer(page))
    assert len(files) == 6
    for file in files:
        (tmp_path / file["name"]).write_text(file["text"], encoding="utf-8")
    commands = [each.text for each in printed() if each.page == PAGE and each.is_block]
    assert len(commands) >= 15
    traced = []
    for command in commands:
        output = follow(command, tmp_path)
        for part, promised in PROMISED.items():
            if part in command:
                assert all(words in output for words in promised), f"{command}\n{output}"
        if "--document" in command:
            traced.append(output)
    before, after = traced
    assert "it was removed from " in after
    assert re.search(r"was in (\d+) of 200 steps", before)[1] == re.search(r"was in (\d+) of 400 steps", after)[1]
