"""The default run against that of an earlier commit: ``python -m benchmarks.quickstart --against COMMIT``."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, main
from benchmarks.smoke import SMALL_RUN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
_GOAL_BITS, _GOAL_SHARE, _GOAL_SECONDS = 2.05, 0.5, 150.0
_GOAL_ALIKE = 1.70  # by the hold-out of earlier commits
_ALIKE = ("data.holdout=0.02", "data.holdout_by=document", "run.name=default")
_MINUTES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run: its last held-out bits per byte, seconds of processors and of the clock, and steps."""

    bits: float
    processor: float
    seconds: float
    steps: int


def outcome_of(tree: Path, module: str, *settings: str) -> Outcome:
    """Return the outcome of the default run of ``tree`` in an empty folder with an empty cache."""
    with tempfile.TemporaryDirectory() as home:
        before, began = _processor_seconds(), time.monotonic()
        subprocess.run(
            [sys.executable, "-m", module, "train", f"run.cache_dir={home}/cache", *settings],
            cwd=home,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        seconds, processor = time.monotonic() - began, _processor_seconds() - before
        lines = (Path(home) / "runs/default/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        last = [record for record in map(json.loads, lines) if "eval_bits_per_byte" in record][-1]
        return Outcome(last["eval_bits_per_byte"], processor, seconds, last["step"])


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Give a folder with the files of ``commit`` within the block."""
    with tempfile.TemporaryDirectory() as folder:
        tree, git = Path(folder) / "tree", ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the loss and the time of both default runs, and the time of a run with a budget in minutes."""
    if options.smoke:
        return _try()
    earlier, now = list[Outcome](), list[Outcome]()
    with checkout(options.against) as tree:
        module = "holdfast" if (tree / "holdfast").is_dir() else "application"
        for _ in range(options.pairs):
            earlier.append(outcome_of(tree, module))
            now.append(outcome_of(ROOT, "holdfast", *_ALIKE))
    usual = outcome_of(ROOT, "holdfast")
    limited = outcome_of(ROOT, "holdfast", f"run.budget.minutes={_MINUTES}")
    bits = max(each.bits for each in now)
    shares = [late.processor / early.processor for early, late in zip(earlier, now, strict=True)]
    share = statistics.median(shares)
    return [
        Figure(f"bits per byte of held-out text, {options.against}", f"{max(each.bits for each in earlier):.3f}"),
        Figure("bits per byte of the same text, this commit", f"{bits:.3f}", f"<= {_GOAL_ALIKE}", bits <= _GOAL_ALIKE),
        Figure(
            "bits per byte of held-out text that resembles nothing in training, this commit",
            f"{usual.bits:.3f}",
            f"<= {_GOAL_BITS}",
            usual.bits <= _GOAL_BITS,
        ),
        Figure(f"processor seconds, {options.against}", _each(earlier, "processor")),
        Figure("processor seconds, this commit", _each(now, "processor")),
        Figure("processor seconds, this commit / earlier", f"{share:.2f}", f"<= {_GOAL_SHARE}", share <= _GOAL_SHARE),
        Figure(f"seconds, {options.against}", _each(earlier, "seconds")),
        Figure("seconds, this commit", _each(now, "seconds")),
        Figure(
            f"seconds with run.budget.minutes={_MINUTES} ({limited.steps} steps, {limited.bits:.3f} bits per byte)",
            f"{limited.seconds:.0f}",
            f"<= {_GOAL_SECONDS:.0f}",
            limited.seconds <= _GOAL_SECONDS,
        ),
    ]


def _try() -> Sequence[Figure]:
    found = [outcome_of(ROOT, "holdfast", *SMALL_RUN, "run.name=default", "run.budget.steps=4").bits for _ in range(2)]
    return [Figure("bits per byte of two equal runs", str(found), "equal", found[0] == found[1], is_equality=True)]


def _each(outcomes: Sequence[Outcome], name: str) -> str:
    return ", ".join(f"{getattr(each, name):.0f}" for each in outcomes)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", default="1a00ec1", metavar="COMMIT", help="the earlier commit; default: 1a00ec1")
    parser.add_argument("--pairs", type=int, default=2, metavar="N", help="runs of each commit; default: 2")


if __name__ == "__main__":
    main(
        "quickstart",
        "The default run, from the start of its process with empty caches to its end, in turns with that of an earlier "
        "commit. Both train a Llama of 2.4 million parameters on the Python standard library. For the comparison both "
        "hold out 2 % of the documents, chosen one by one; the last two runs hold out 5 % in groups of similar ones.",
        measure,
        ["torch", "tokenizers", "transformers"],
        add_options=_add_options,
    )
