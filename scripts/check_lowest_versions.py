"""Runs tests with the lowest version of each package that pyproject.toml allows, or records which versions were tested.

``check`` needs the program uv. It installs Holdfast with the lowest versions of its direct dependencies into a virtual
environment of its own, also if the environment is there already, and runs tests there.

``record`` writes the lowest versions, those of the running environment and the date into docs/dependencies.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/dependencies.md"
QUICK = ["tests/unit", "tests/contracts"]
HEADING = "## Tested versions\n"
_VERSIONS = (
    "import json; from importlib.metadata import distributions as all; "
    "print(json.dumps({each.name: each.version for each in all()}))"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for; return the exit code, which is that of pytest for ``check``."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="Arguments behind -- are those of pytest."
    )
    parser.add_argument("action", choices=["check", "record"], help="run the tests, or write the table of versions")
    text = "the virtual environment; check makes it if it is not there"
    parser.add_argument("--environment", type=Path, default=ROOT / "build/lowest", help=text)
    parser.add_argument("--python", default=platform.python_version(), help="the Python of a new environment")
    parser.add_argument("--quick", action="store_true", help=f"run {' and '.join(QUICK)} alone")
    parser.add_argument("--tests", default="", help="words on what was tested, for the table: 'tests/unit'")
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    end = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:end])
    environment = options.environment.resolve()
    python = environment / "bin/python"
    if options.action == "record":
        if not python.is_file():
            parser.error(f"{environment} is no virtual environment: make it with check first")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), versions_of(python), options.tests), "utf-8")
        return 0
    if shutil.which("uv") is None:
        parser.error("the program uv is not installed: run pip install uv")
    if not python.is_file():
        _run("uv", "venv", "--quiet", "--python", options.python, str(environment))
    target = ["--python", str(python), "--resolution", "lowest-direct", "--compile-bytecode"]
    exactly = ["--upgrade", "--exact"]  # versions that an older pyproject.toml allowed are not kept
    _run("uv", "pip", "install", *target, *exactly, "--editable", ".[test]")
    folders = QUICK if options.quick else []
    lenient = ["-W", "default"]  # old libraries warn about newer ones that they use
    return _run(str(python), "-m", "pytest", *lenient, *folders, *given[end + 1 :], is_checked=False)


def versions_of(python: Path) -> dict[str, str]:
    """Return the version of each package that the interpreter ``python`` finds, by its canonical name."""
    process = subprocess.run([python, "-c", _VERSIONS], cwd="/", env=_environment(), capture_output=True, check=True)  # noqa: S603
    return {canonicalize_name(name): version for name, version in json.loads(process.stdout).items()}


def direct_names() -> list[str]:
    """Return the packages that pyproject.toml names, but for those that only the development or documentation needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in {"dev", "docs"}}
    lines = [*project["dependencies"], *(line for each in extras.values() for line in each)]
    return sorted({canonicalize_name(Requirement(line).name) for line in lines})


def with_table(page: str, lowest: Mapping[str, str], tests: str) -> str:
    """Return ``page`` with a table of the versions ``lowest`` and of the installed ones, in place of its table."""
    newest = {canonicalize_name(each.name): each.version for each in distributions()}
    date, system = datetime.now(UTC).date(), f"{platform.system()} ({platform.machine()})"
    before, _, section = page.partition(HEADING)
    _, begin, after = section.partition("\n## ")
    rows = [f"| `{name}` | {_or_not(lowest.get(name))} | {_or_not(newest.get(name))} |" for name in direct_names()]
    words = (
        f"The tests{f' of {tests}' if tests else ''} were run on {date} on {system} with Python "
        f"{platform.python_version()} and the lowest versions that `pyproject.toml` allows. The newest versions are "
        "those of the environment in which the whole suite runs. The target `lowest` of make runs the default suite "
        "with the lowest versions, and `python scripts/check_lowest_versions.py record` writes this section."
    )
    table = ["| package | lowest | newest |", "|---|---|---|", *rows]
    return "\n".join([before.rstrip("\n"), "", HEADING, *_wrapped(words), "", *table]) + "\n" + begin + after


def _or_not(version: str | None) -> str:
    return version or "not tested"


def _wrapped(text: str, width: int = 120) -> list[str]:
    return re.sub(rf"(.{{1,{width}}})(?: |$)", r"\1\n", text).splitlines()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def _run(*command: str, is_checked: bool = True) -> int:
    print("$", *command, flush=True)  # noqa: T201
    return subprocess.run(command, cwd=ROOT, env=_environment(), check=is_checked).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
