"""The commands that the documentation prints, taken from its files."""

from __future__ import annotations

import re
import shlex

import pytest
from command_line import ROOT, corpus, run_here, tiny

from bootstrap.cli import _parser
from configs.layers import load_settings

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
BEGIN = ["python", "-m", "application"]
READING = {"generate", "evaluate", "inspect", "explain", "config"}
"""What a run of seconds can show; the others train, and so take minutes with the settings as printed."""


def printed():
    """Yield where each command stands, the variables before it and its words, of code blocks: fenced or indented."""
    for page in PAGES:
        is_fenced = False
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
            is_fenced ^= line.startswith("```")
            found = re.match(r"((?:\w+=\S+ )*)(?:.* && )?(python -m application .*)", line.strip())
            if found is not None and (is_fenced or line.startswith("    ")):
                words = shlex.split(found[2], comments=True)
                yield pytest.param(dict(part.split("=", 1) for part in found[1].split()), words, id=f"{page}:{number}")


COMMANDS = list(printed())


def test_the_documentation_prints_commands():
    """Commands are found on several pages: else the tests below would pass on nothing."""
    assert len(COMMANDS) >= 20
    assert len({str(each.id).partition(":")[0] for each in COMMANDS}) >= 6


@pytest.mark.parametrize(("variables", "words"), COMMANDS)
def test_a_printed_command_is_understood(variables, words, monkeypatch):
    """Each printed command is one that there is, with arguments that it takes and settings that validate together."""
    monkeypatch.chdir(ROOT)  # where the configurations that are named lie
    assert words[:3] == BEGIN
    options, others = _parser()[0].parse_known_args(words[3:])
    assert not [other for other in others if other.startswith("-") or "=" not in other]
    settings = [*getattr(options, "settings", []), *others]
    assert hasattr(options, "settings") or not others
    load_settings(getattr(options, "config", []), settings, variables)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a finished run called default."""
    folder = tmp_path_factory.mktemp("home")
    more = ["run.name=default", "run.budget.steps=2", "evaluation.every=0"]
    process = run_here("train", *tiny(corpus(folder)), *more, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.parametrize("words", [each.values[1] for each in COMMANDS if each.values[1][3] in READING], ids=shlex.join)
def test_a_printed_command_that_reads_a_run_works(home, words):
    """Each printed command that looks at a run or at settings works as printed beside a run called default."""
    process = run_here(*words[3:], cwd=home)
    assert process.returncode == 0, process.stderr
    assert process.stdout
