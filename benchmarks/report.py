"""Tables of figures: printed, written to docs/benchmarks.md, held to their goals."""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from benchmarks.smoke import NotPossibleError, add_smoke, end_smoke, say_skipped
from benchmarks.stale import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what was measured, what came out, what the goal is and whether it is met (None: there is no goal).

    ``is_equality`` says that results are compared, not times: such a goal holds in a small trial too.
    """

    name: str
    value: str
    goal: str = ""
    is_met: bool | None = None
    is_equality: bool = False


def main(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace], Sequence[Figure]],
    packages: Sequence[str],
    *,
    add_options: Callable[[argparse.ArgumentParser], object] = lambda _: None,
) -> None:
    """Run ``measure`` from the command line: print the table, ``--write`` it, ``--check`` it, or try it by ``--smoke``.

    ``measure`` gets the options, with those of ``add_options``.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--check", action="store_true", help="exit 1 naming each figure that falls short of its goal")
    add_smoke(parser)
    add_options(parser)
    options = parser.parse_args()
    if options.smoke:
        if options.write or options.check:
            parser.error("--smoke measures nothing, so it takes neither --write nor --check")
        _try(measure, options)
        return
    figures = measure(options)
    section = _section(name, description, figures, packages)
    print(section)
    if options.write:
        _write(name, section)
    short = [figure for figure in figures if figure.is_met is False]
    if options.check and short:
        for figure in short:
            print(f"falls short: {figure.name} is {figure.value}, goal {figure.goal}", file=sys.stderr)
        sys.exit(1)


def _try(measure: Callable[[argparse.Namespace], Sequence[Figure]], options: argparse.Namespace) -> None:
    try:
        figures = measure(options)
    except NotPossibleError as error:
        say_skipped(error)
        return
    different = [figure for figure in figures if figure.is_equality and figure.is_met is False]
    end_smoke([f"not equal: {figure.name} is {figure.value}, goal {figure.goal}" for figure in different])


def interval_of_median(values: Sequence[float], *, seed: int = 0) -> tuple[float, float, float]:
    """Return the median and its 95 % confidence interval by bootstrap with 10,000 resamples."""
    array = np.asarray(values)
    picks = np.random.default_rng(seed).integers(0, len(array), (10_000, len(array)))
    low, high = np.quantile(np.median(array[picks], axis=1), [0.025, 0.975])
    return float(np.median(array)), float(low), float(high)


def machine() -> str:
    """Return processor, cores and memory in words."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (found := re.search(r"model name\s*: (.*)", info.read_text())):
        cpu = found[1]
    memory = psutil.virtual_memory().total / 2**30
    return f"{cpu}, {psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"


def _section(name: str, description: str, figures: Sequence[Figure], packages: Sequence[str]) -> str:
    known = {package: version(package) for package in packages if any(distributions(name=package))}
    versions = ", ".join(f"{package} {number}" for package, number in known.items())
    rows = [("figure", "value", "goal", "met"), ("---", "---", "---", "---")]
    marks = {True: "yes", False: "no", None: ""}
    rows += [(figure.name, figure.value, figure.goal, marks[figure.is_met]) for figure in figures]
    lines = [
        f"## {name}",
        "",
        description,
        "",
        f"- command: `python -m benchmarks.{name} --write --check`",
        f"- machine: {machine()}",
        f"- versions: Python {platform.python_version()}, {versions}",
        f"- date: {datetime.now(UTC).date()}, on commit {_commit()}",
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    with suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    return "unknown"


def _write(name: str, section: str) -> None:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "# Benchmarks\n"
    pattern = re.compile(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    text = pattern.sub("", text).rstrip() + "\n\n" + section
    PAGE.write_text(text, encoding="utf-8")
