"""Real training runs in the children of one process, each within a second."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.file_faults import MEMORY, files_under

ROOT = Path(__file__).parents[2]
FOLDER = Path("runs/default")
STEPS = 12


@dataclass
class ForkedRuns:
    """The process that forks, and the corpus and the undisturbed run that all others are compared with."""

    process: subprocess.Popen[str]
    home: Path

    def settings(self, *more: str) -> list[str]:
        """Return the arguments of a run of 12 steps with a checkpoint at each fourth; ``more`` come behind."""
        return [
            "train",
            "run.name=default",
            "data.kind=files",
            f"data.path={self.home / 'corpus.jsonl'}",
            "data.sequence_length=16",
            "data.holdout=0.2",
            "tokenizer.vocabulary_size=270",
            "tokenizer.backend=huggingface",
            f"run.cache_dir={self.home / 'cache'}",
            f"run.budget.steps={STEPS}",
            "model.config.hidden_size=16",
            "model.config.intermediate_size=32",
            "model.config.num_hidden_layers=1",
            "model.config.num_attention_heads=2",
            "model.config.num_key_value_heads=2",
            "optimizer.batch_size=4",
            "optimizer.micro_batch=2",
            "optimizer.device=cpu",
            "optimizer.precision=fp32",
            "state_store.every=4",
            "evaluation.every=6",
            "evaluation.at_start=false",
            "sample.max_new_tokens=1",
            *more,
        ]

    def together(self, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return how each of ``jobs``, run at the same time, ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for job in jobs:
            Path(job["cwd"]).mkdir(parents=True, exist_ok=True)
        self.process.stdin.write(json.dumps(jobs[0] if jobs[0].get("is_first") else jobs) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that forks has ended"
        answer: list[dict[str, Any]] = json.loads(line)
        return answer

    def run(self, cwd: Path, *more: str, command: list[str] | None = None, **job: Any) -> dict[str, Any]:
        """Return how a run in ``cwd`` ended."""
        return self.together(self.job(cwd, *more, command=command, **job))[0]

    def job(self, cwd: Path, *more: str, command: list[str] | None = None, **job: Any) -> dict[str, Any]:
        """Return what describes a run in ``cwd``."""
        return {"arguments": command or self.settings(*more), "cwd": str(cwd), **job}

    @property
    def undisturbed(self) -> dict[str, bytes]:
        """Return ``final_state`` of a run that nothing disturbed."""
        return final_state(self.home / "undisturbed")


def final_state(home: Path) -> dict[str, bytes]:
    """Return the files of the last checkpoint that resumed runs must have alike, to the bit."""
    files = files_under(home / FOLDER / f"checkpoints/checkpoint-{STEPS}")
    assert {"model.safetensors", "optimizer.safetensors"} <= files.keys(), sorted(files)
    return {name: data for name, data in files.items() if name.endswith((".safetensors", "optimizer.json"))}


def complete_steps(home: Path) -> list[int]:
    """Return the steps whose losses were recorded."""
    lines = (home / FOLDER / "metrics.jsonl").read_text().splitlines()
    return [record["step"] for record in map(json.loads, lines) if "loss" in record]


def stored_steps(home: Path) -> list[int]:
    """Return the steps of which there is a committed checkpoint."""
    places = (home / FOLDER / "checkpoints").glob("checkpoint-*/COMMIT")
    return sorted(int(path.parent.name.rpartition("-")[2]) for path in places)


def start_forked_runs(home: Path, preloaded: Path | None = None) -> ForkedRuns:
    """Start the process that forks, with a library ``preloaded``; its first run, undisturbed, lies in ``home``."""
    words, chance = ["the", "model", "reads", "and", "learns", "what", "comes", "next"], random.Random(0)
    texts = (" ".join(chance.choices(words, k=chance.randrange(5, 30))) for _ in range(60))
    (home / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of pyarrow until 25: a thread of its heap
        **({} if preloaded is None else {"LD_PRELOAD": str(preloaded)}),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    command = [sys.executable, str(Path(__file__).with_name("run_driver.py"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    runs = ForkedRuns(process, home)
    runs.together(runs.job(home / "undisturbed") | {"is_first": True})
    return runs


def scratch(name: str) -> Path:
    """Return a new folder in which syncing costs nothing; its owner deletes it."""
    place = Path(MEMORY or "/tmp") / f"holdfast-{name}-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place
