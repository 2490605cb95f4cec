"""The table of tested versions that ``scripts/check_lowest_versions.py`` writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.command_line import ROOT

SCRIPT = "scripts/check_lowest_versions.py"
ROW = re.compile(r"^\| `(?P<name>[\w.-]+)` \| (?P<lowest>[^|]+) \| (?P<newest>[^|]+) \|$", re.MULTILINE)


UV = """\
#!/bin/sh
echo "$@" >> "{log}"
if [ "$1" = venv ]; then
    for last; do :; done
    mkdir -p "$last/bin"
    printf '#!/bin/sh\\nexec "{python}" "$@"\\n' > "$last/bin/python"
    chmod +x "$last/bin/python"
fi
"""


def run_script(root, *arguments, **options):
    """Run the script of the tree ``root`` with ``arguments``."""
    command = [sys.executable, str(root / SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


def table_of(root):
    """Return the lowest and the newest version of each package in the table of ``root``."""
    section = (
        (root / "docs/dependencies.md")
        .read_text(encoding="utf-8")
        .partition("## Tested versions\n")[2]
        .partition("\n## ")[0]
    )
    return {row["name"]: (row["lowest"], row["newest"]) for row in ROW.finditer(section)}


def test_versions_are_recorded(tmp_path):
    """The table gets the versions of both environments and keeps the page around it, also when it is written again."""
    for name in ("pyproject.toml", "docs/dependencies.md", SCRIPT):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs/dependencies.md"
    before, _, section = page.read_text(encoding="utf-8").partition("## Tested versions")
    licenses = section.partition("\n## ")[2]
    environment = Path(sys.prefix)
    for tests in ("tests/unit", "tests/contracts"):
        process = run_script(tmp_path, "record", "--environment", str(environment), "--tests", tests)
        assert process.returncode == 0, process.stderr
    text = page.read_text(encoding="utf-8")
    assert text.startswith(before)
    assert text.endswith(f"\n\n## {licenses}")
    assert licenses
    assert text.count("## Tested versions") == 1
    assert "The tests of tests/contracts were run on" in text
    assert table_of(tmp_path)["numpy"] == (version("numpy"), version("numpy"))


def test_an_environment_that_is_missing_is_named(tmp_path):
    """Nothing is recorded from a folder without an environment, and the message says how to make it."""
    process = run_script(ROOT, "record", "--environment", str(tmp_path / "none"))
    assert process.returncode == 2
    assert f"{tmp_path / 'none'} is no virtual environment: make it with check first" in process.stderr


def test_versions_are_installed_in_an_environment_that_is_there(tmp_path):
    """A relative environment is made once, in the folder of the caller, and its packages are installed each time."""
    programs, home, log = tmp_path / "programs", tmp_path / "home", tmp_path / "log"
    programs.mkdir()
    home.mkdir()
    (programs / "uv").write_text(UV.format(log=log, python=sys.executable))
    (programs / "uv").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for _ in range(2):
        process = run_script(ROOT, "check", "--environment", "lowest", "--", "--version", cwd=home, env=environment)
        assert process.returncode == 0, process.stdout + process.stderr
    made, *installed = log.read_text().splitlines()
    assert made.split()[0] == "venv"
    assert made.split()[-1] == str(home / "lowest")
    assert len(installed) == 2
    assert all(f"--python {home / 'lowest/bin/python'}" in line and "--upgrade" in line for line in installed)


def test_recorded_versions_are_allowed():
    """Each version in docs/dependencies.md is one that pyproject.toml allows, the lowest one its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(each for lines in project["optional-dependencies"].values() for each in lines)]
    allowed = {canonicalize_name(each.name): each.specifier for each in map(Requirement, lines)}
    table = table_of(ROOT)
    assert len(table) > 50
    for name, versions in table.items():
        tested = [each for each in versions if each != "not tested"]
        refused = [each for each in tested if not allowed[name].contains(each, prereleases=True)]
        assert not refused, f"{name} {refused} is outside of {allowed[name]}"
    bounds = {name: lower_bound(allowed[name]) for name in table}
    higher = {name: low for name, (low, _) in table.items() if low[0].isdigit() and above(low, bounds[name])}
    assert not higher, "another package needs a newer version than the lower bound: raise the bound"


def lower_bound(specifier):
    """Return the version after ``>=`` in ``specifier``."""
    (bound,) = [each.version for each in specifier if each.operator == ">="]
    return Version(bound)


def above(tested, bound):
    """Return whether ``tested`` is of a newer minor version than ``bound``."""
    return Version(tested).release[:2] > (*bound.release, 0)[:2]
