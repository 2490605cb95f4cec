"""Run folders that no run has written, for tests of what reads them."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

STARTED = "2026-11-25T10:00:00+00:00"


def make_run(folder: Path, **more: Any) -> Path:
    """Write the record of a run that has begun into ``folder``; ``more`` replaces parts of it."""
    folder.mkdir(parents=True, exist_ok=True)
    budget = {"steps": 1000, "tokens": None}
    record = {
        "schema": 1,
        "id": "abc",
        "created": STARTED,
        "settings": {"run": {"name": folder.name, "budget": budget}, "optimizer": {"learning_rate": 1}},
        "auto": {"optimizer.learning_rate": {"value": "2", "reason": "the formula says so"}},
        "facts": {},
        "history": [],
        "start": {"time": STARTED, "phase": "training"},
    }
    (folder / "run.json").write_text(json.dumps(record | more))
    return folder


def add_event(folder: Path, name: str, **fields: Any) -> None:
    """Add an event, which happens now, to ``events.jsonl``."""
    _add(folder / "events.jsonl", {"time": datetime.now(UTC).isoformat(), "event": name, **fields})


def add_steps(folder: Path, steps: range, salt: float = 0.0) -> None:
    """Add the metrics of ``steps``, and an evaluation every 100 steps, to ``metrics.jsonl``."""
    for step in steps:
        figures = {"tokens": step * 256, "loss": 5.0 + salt - step / 1e3, "lr": 1e-3, "grad_norm": 1.0 + step % 7 / 10}
        figures |= {"tokens_per_second": 5000.0, "data_wait_seconds": 0.001, "memory_bytes": 10**9, "micro_batch": 4}
        _add(folder / "metrics.jsonl", {"step": step} | figures)
        if step % 100 == 0:
            evaluation = {"eval_loss": 5.1 + salt - step / 1e3, "eval_bits_per_byte": 2.5}
            _add(folder / "metrics.jsonl", {"step": step, "tokens": step * 256} | evaluation)


def hold(folder: Path, pid: int | None = None) -> None:
    """Name a process of this machine, by default this one, as the one that trains the run."""
    since = datetime.now(UTC).timestamp()
    (folder / "LOCK").write_text(json.dumps({"pid": pid or os.getpid(), "host": socket.gethostname(), "since": since}))


def _add(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
