"""The prediction of `plan` against the run that follows: ``python -m benchmarks.plan``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.report import Figure, interval_of_median, main

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_TEXT = "the model reads text and learns to say what comes next in small steps and keeps its place"
_DOCUMENTS = 600
_COMMON = [
    "run.name=default",
    "data.sequence_length=64",
    "data.holdout=0.1",
    "data.shuffle_tokens=4096",
    "tokenizer.vocabulary_size=300",
    "optimizer.batch_size=4",
    "optimizer.device=cpu",
    "run.budget.steps=600",
    "state_store.every=200",
    "evaluation.every=200",
    "resources.auto_tune=false",
]
_LLAMA = ["model.config.hidden_size=64", "model.config.intermediate_size=128", "model.config.num_attention_heads=4"]
_DECODER = ["model.kind=decoder", "model.hidden_size=128", "model.num_hidden_layers=4", "model.num_attention_heads=4"]
CONFIGURATIONS = {"Llama": _LLAMA, "decoder": _DECODER, "Llama, data streamed": [*_LLAMA, "data.mode=stream"]}
_MEMORY, _TIME = 0.10, 0.15


def write_text(path: Path) -> None:
    """Write the documents of all runs."""
    chance, words = np.random.default_rng(0), _TEXT.split()
    with path.open("w", encoding="utf-8") as file:
        for _ in range(_DOCUMENTS):
            file.write(json.dumps({"text": " ".join(chance.choice(words, chance.integers(20, 200)))}) + "\n")


def planned_and_done(settings: Sequence[str], home: Path) -> tuple[float, float, int]:
    """Plan a run in the folder ``home`` and do it.

    Return the excess of planned peak and time, as shares of the run, and that of planned steps.
    """
    plan = json.loads(_run("plan", *settings, "--json", cwd=home))
    began = time.monotonic()
    _run("train", *settings, "--json", cwd=home)
    seconds = time.monotonic() - began
    lines = (home / "runs/default/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    peak = max(each.get("memory_bytes", 0) for each in metrics)
    steps = plan["data"]["steps"] - metrics[-1]["step"]
    return plan["memory"]["peak_bytes"][0] / peak - 1, plan["time"]["seconds"] / seconds - 1, steps


def _run(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, cwd=cwd, env=os.environ, text=True, capture_output=True, check=True).stdout


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the deviations of the plans of each configuration."""
    figures: list[Figure] = []
    last = ["run.budget.steps=10"] if options.smoke else []
    for name, words in list(CONFIGURATIONS.items())[-1 if options.smoke else 0 :]:
        found: list[tuple[float, float, int]] = []
        for _ in range(1 if options.smoke else options.pairs):
            with tempfile.TemporaryDirectory() as folder:
                write_text(Path(folder) / "text.jsonl")
                own = [f"data.path={folder}/text.jsonl", f"run.cache_dir={folder}/cache"]
                found.append(planned_and_done([*_COMMON, *own, *words, *last], Path(folder)))
        figures += [_figure(f"{name}: {kind}", [pair[place] for pair in found], goal) for place, kind, goal in _KINDS]
        wrong = max(abs(steps) for _, _, steps in found)
        what = f"{name}: largest difference between planned steps and those of the run"
        figures.append(Figure(what, str(wrong), "0", wrong == 0, is_equality=True))
    return figures


_KINDS = ((0, "planned peak of memory", _MEMORY), (1, "planned time", _TIME))


def _figure(name: str, misses: Sequence[float], goal: float) -> Figure:
    middle, low, high = interval_of_median(misses)
    value = f"{middle:+.1%} [{low:+.1%}, {high:+.1%}]"
    title = f"{name}, relative to the run, median of {len(misses)} pairs [95 % interval]"
    return Figure(title, value, f"within {goal:.0%}", low <= goal and high >= -goal)


def _add_options(parser: argparse.ArgumentParser) -> Any:
    return parser.add_argument("--pairs", type=int, default=5, metavar="N", help="pairs of a configuration; default: 5")


if __name__ == "__main__":
    main(
        "plan",
        "`plan` predicts memory and time from a trial of a few steps; then `train` does the run of 600 steps. Each "
        "pair has a folder of its own.",
        measure,
        ("torch", "transformers"),
        add_options=_add_options,
    )
