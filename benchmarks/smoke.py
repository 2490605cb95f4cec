"""The option ``--smoke``: a small trial of a benchmark, which compares results and times nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SMALL_RUN = (
    "model.config.hidden_size=64",
    "model.config.intermediate_size=128",
    "model.config.num_hidden_layers=2",
    "model.config.num_attention_heads=4",
    "model.config.num_key_value_heads=2",
    "tokenizer.vocabulary_size=512",
    "tokenizer.max_bytes=200000",
    "data.sequence_length=64",
    "data.mode=stream",
    "optimizer.micro_batch=8",
    "optimizer.precision=fp32",
)
"""Settings that make the default run small."""

_FOLDER = Path(__file__).parent
_PARTS = {"quality_oracle"}  # programs that a benchmark starts
_OK, _SKIPPED = "ok", "skipped: "
_SECONDS = 1800
_AT_ONCE = 2  # with one thread each, so that two processors are busy
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class NotPossibleError(Exception):
    """The benchmark cannot be tried here; the message says why."""


def add_smoke(parser: argparse.ArgumentParser) -> None:
    """Add the option to ``parser``."""
    parser.add_argument(
        "--smoke", action="store_true", help="a small trial: compare results, time nothing, leave out missing peers"
    )


def has_peer(package: str, *, is_smoke: bool) -> bool:
    """Return whether ``package`` takes part: only a trial leaves out one that is not installed, and prints that."""
    if not is_smoke or find_spec(package):
        return True
    say_skipped(f"{package} is not installed")
    return False


def need(package: str, *, is_smoke: bool) -> None:
    """Raise ``NotPossibleError`` in a trial if ``package`` is not installed."""
    if is_smoke and not find_spec(package):
        message = f"{package} is not installed"
        raise NotPossibleError(message)


def end_smoke(problems: Sequence[str] = ()) -> None:
    """Print that the trial went well; with ``problems``, end the process by naming them."""
    if problems:
        raise SystemExit("\n".join(problems))
    print(_OK)


def say_skipped(reason: object) -> None:
    """Print why a part of the benchmark, or all of it, is not tried."""
    print(f"{_SKIPPED}{reason}")


def names() -> list[str]:
    """Return the names of all benchmarks, as in ``python -m benchmarks.NAME``."""
    programs = {path.stem for path in _FOLDER.glob("*.py") if "\nif __name__ ==" in path.read_text(encoding="utf-8")}
    return sorted((programs | {path.parent.name for path in _FOLDER.glob("*/__main__.py")}) - _PARTS)


def try_all() -> int:
    """Try each benchmark, two at a time, and print a line on each; return 1 if one failed or none was tried, else 0."""
    tried = names()
    lines = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for name, (line, errors) in zip(tried, pool.map(_try_one, tried), strict=True):
            if errors:
                print(errors, file=sys.stderr)
            print(f"{name}: {line}", flush=True)
            lines.append(line)
    failed = [name for name, line in zip(tried, lines, strict=True) if line.startswith("failed")]
    if failed:
        print(f"the trial of {', '.join(failed)} failed", file=sys.stderr)
    elif not any(line.startswith(_OK) for line in lines):
        print("all benchmarks were skipped, so nothing was compared", file=sys.stderr)
    else:
        return 0
    return 1


def _try_one(name: str) -> tuple[str, str]:
    """Return the line on the benchmark called ``name``, and the end of what it wrote to standard error if it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--smoke"],
            cwd=_FOLDER.parent,
            env=os.environ | _ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"failed: it took longer than {_SECONDS} s", ""
    return outcome(done), done.stderr[-4000:] if done.returncode else ""


def outcome(done: subprocess.CompletedProcess[str]) -> str:
    """Return in a line how the trial ``done`` went: ok, skipped or failed, and why."""
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        return f"failed with code {done.returncode}: {last or 'no message'}"
    lines = done.stdout.splitlines()
    reasons = "; ".join(line.removeprefix(_SKIPPED) for line in lines if line.startswith(_SKIPPED))
    if lines[-1:] == [_OK]:
        return _OK + (f" (skipped: {reasons})" if reasons else "")
    return f"skipped ({reasons})" if reasons else "failed: it ended without a result"
