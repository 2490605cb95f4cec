"""What changed since the measurements of docs/benchmarks.md: commits to the code of each section, counted by git."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_LOOP = ("application/training", "adapters/optimizer", "adapters/model_factory", "adapters/shared/modeling")
_DATA = ("application/data", "domain/data", "adapters/data_source", "adapters/tokenizer", "adapters/token_cache")
PATHS = {
    "state": (
        "benchmarks/state",
        "adapters/state_store",
        "adapters/shared/tensor_state",
        "application/checkpointer.py",
    ),
    "survival": ("benchmarks/survival", "application/handlers", "domain/resources", "adapters/resource_probe"),
    "train": ("benchmarks/train", *_LOOP, "application/handlers"),
    "gpu": ("benchmarks/gpu", "benchmarks/train", *_LOOP, "adapters/shared/device"),
    "beside": ("benchmarks/beside.py", *_LOOP, "application/handlers", "domain/resources", "bootstrap/process"),
    "ledger": ("benchmarks/ledger.py", "adapters/ledger", "adapters/shared/sql"),
    "loop": (
        "benchmarks/loop.py",
        *_LOOP,
        "application/handlers",
        "configs/ready_configurations.py",
    ),
    "ledger_cost": ("benchmarks/ledger_cost.py", "adapters/ledger", "application/handlers/record_ledger.py"),
    "data": ("benchmarks/data", *_DATA),
    "quality_rules": ("benchmarks/quality_rules.py", "benchmarks/quality_oracle.py", "adapters/transform"),
    "prepare": ("benchmarks/prepare.py", *_DATA, "bootstrap/operations"),
    "chat_packing": ("benchmarks/chat_packing.py", *_LOOP, "domain/data"),
    "plan": ("benchmarks/plan.py", *_LOOP, "bootstrap/operations", "bootstrap/stages/choose/memory_check.py"),
    "quickstart": ("benchmarks/quickstart.py", *_LOOP, *_DATA, "configs"),
    "trackers": ("benchmarks/trackers.py", "application/handlers", "adapters/monitor"),
    "suites": ("benchmarks/suites.py", "bootstrap/stages/attach/suite_process.py", "application/training"),
}
"""By section the code whose changes may change its figures."""

_SECTION = re.compile(r"^## (\w+)\n(?:(?!## ).*\n)*?- date: .*, on commit (\w+)\n(?:- since then: .*\n)?", re.MULTILINE)
_LINE = re.compile(r"^- since then: .*\n", re.MULTILINE)


def measured(page: str) -> dict[str, str]:
    """Return by section of ``page`` the commit that it was measured on."""
    return {found[1]: found[2] for found in _SECTION.finditer(page)}


def note_changes() -> int:
    """Write below the date of each section how many commits changed its code since; print that too, and return 0."""
    head = _git("rev-parse", "--short", "HEAD")
    text = PAGE.read_text(encoding="utf-8")
    counts = {name: changes(commit, PATHS[name]) for name, commit in measured(text).items()}

    def noted(found: re.Match[str]) -> str:
        return _LINE.sub("", found[0]) + f"- since then: {described(counts[found[1]], PATHS[found[1]], head)}\n"

    PAGE.write_text(_SECTION.sub(noted, text), encoding="utf-8")
    for name, count in counts.items():
        print(f"{name}: {described(count, PATHS[name], head)}")
    return 0


def changes(commit: str, paths: tuple[str, ...]) -> int | None:
    """Return the number of commits after ``commit`` that changed ``paths``; None if the history lacks ``commit``."""
    told = _git("rev-list", "--count", f"{commit}..HEAD", "--", *paths)
    return int(told) if told else None


def described(count: int | None, paths: tuple[str, ...], head: str) -> str:
    """Return in words that ``count`` commits up to ``head`` changed ``paths``."""
    code = ", ".join(f"`{path}`" for path in paths)
    if count is None:
        return f"unknown, as that commit is not in the history; the code is {code}"
    return f"{count or 'no'} commit{'' if count == 1 else 's'} up to {head} changed {code}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PAGE.parents[1]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
