"""What `inspect` shows of a run folder or a checkpoint."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from adapters.shared.file_operations import explain
from adapters.shared.json_lines import JsonLines
from adapters.state_store.inspection import Inspector, is_checkpoint
from adapters.state_store.manifest import SCHEMA
from configs.problems import one_line
from domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from adapters.state_store.inspection import CheckpointReport, Problem, StoreReport

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SHORT_HASH = len("blake3:") + 12
_PATIENCE = 2.0
_MOST_PROBLEMS = 3


def inspect(path: Path, *, hashing: bool, as_json: bool) -> tuple[str, bool]:
    """Return what to print about the run folder or checkpoint ``path``, and whether all that was looked at verifies.

    Without ``hashing`` names and sizes are compared only. The text holds no control character but line ends. Raises
    ``StateError`` if there is no checkpoint or ``path`` cannot be read.
    """
    try:
        folder = Path(os.path.realpath(path, strict=True))
        report = (_checkpoint if is_checkpoint(folder) else _run)(path, folder, hashing=hashing)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{one_line(str(path))} is no folder: name a run, such as runs/default, or one of its checkpoints"
        raise StateError(msg) from error
    except OSError as error:
        msg = f"{one_line(str(path))} cannot be read, {explain(error)}"
        raise StateError(msg) from error
    except StateError as error:
        raise StateError(one_line(str(error))) from error
    if as_json:
        return json.dumps(report, indent=1, allow_nan=False).replace("\x7f", "\\u007f"), report["sound"]
    lines = _checkpoint_lines(report) if "files" in report else _run_lines(report)
    return "\n".join(lines), report["sound"]


def _run(path: Path, folder: Path, *, hashing: bool) -> dict[str, Any]:
    store = Inspector(hashing=hashing, count=_Progress().count).store(folder)
    if not store.checkpoints:
        set_aside = f", but for {len(store.quarantine)} in quarantine" if store.quarantine else ""
        msg = f"{path} holds no checkpoints{set_aside}: name a run folder that was trained in, such as runs/default"
        raise StateError(msg)
    figures = _figures(folder / "metrics.jsonl", {_step(report) for report in store.checkpoints})
    return {
        "run": str(path),
        "sound": not any(report.problems for report in store.checkpoints),
        "checkpoints": [
            _summary(report, hashing=hashing) | figures[_step(report)].to_json() for report in store.checkpoints
        ],
        "quarantine": [{"name": entry.name, "reason": entry.flaw} for entry in store.quarantine],
        "resume": _resume(store, hashing=hashing),
    }


def _checkpoint(path: Path, folder: Path, *, hashing: bool) -> dict[str, Any]:
    report = Inspector(hashing=hashing, count=_Progress().count).checkpoint(folder)
    manifest, flaws = report.manifest, {problem.path: problem.flaw for problem in report.problems}
    files = manifest.files if manifest else []
    state = _good_state(hashing=hashing)
    entries: list[dict[str, Any]] = [
        {
            "path": file.path,
            "bytes": file.size,
            "hash": file.hash,
            "state": flaws.get(file.path, state if file.path in report.sound else "not checked"),
        }
        for file in files
    ]
    extra = [flawed for flawed in flaws if flawed is not None and flawed not in {file.path for file in files}]
    return {
        "checkpoint": str(path),
        "sound": not report.problems,
        **_summary(report, hashing=hashing),
        "generation": manifest.generation if manifest else None,
        "schema": SCHEMA if manifest else None,
        "evaluation_loss": manifest.evaluation_loss if manifest else None,
        "files": [*entries, *({"path": name, "bytes": None, "hash": None, "state": flaws[name]} for name in extra)],
    }


def _summary(report: CheckpointReport, *, hashing: bool) -> dict[str, Any]:
    manifest = report.manifest
    return {
        "name": report.name,
        "step": manifest.progress.step if manifest else None,
        "tokens": manifest.progress.tokens if manifest else None,
        "reason": manifest.reason if manifest else None,
        "saved": report.saved.isoformat(timespec="seconds") if report.saved else None,
        "bytes": manifest.num_bytes if manifest else None,
        "state": report.problems[0].flaw if report.problems else _good_state(hashing=hashing),
        "problems": [_problem(problem) for problem in report.problems],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"flaw": problem.flaw, "file": problem.path, "reason": problem.reason}


def _good_state(*, hashing: bool) -> str:
    return "verified" if hashing else "complete"


def _step(report: CheckpointReport) -> int:
    return int(report.name.partition("-")[2])


def _resume(store: StoreReport, *, hashing: bool) -> dict[str, Any]:
    found = store.resumable
    if found is None:
        return {"takes": None, "text": "a resume would find no checkpoint that verifies"}
    if found.problems:
        return {"takes": None, "text": f"a resume would end with an error at {found.name}"}
    condition = "" if hashing else ", if its bytes verify"
    return {"takes": found.name, "text": f"a resume would take {found.name}{condition}"}


@dataclass(frozen=True, slots=True)
class _Figures:
    """What metrics.jsonl says about a step: its loss, and the last evaluation up to it."""

    loss: float | None
    evaluation: Mapping[str, float | None] | None

    def to_json(self) -> dict[str, Any]:
        told = self.evaluation and {name: _finite(value) for name, value in self.evaluation.items()}
        return {"loss": _finite(self.loss), "evaluation": told}


def _figures(path: Path, steps: Collection[int]) -> Mapping[int, _Figures]:
    losses: dict[int, float | None] = {}
    evaluations: dict[int, Mapping[str, float | None]] = {}
    for record in JsonLines(path).read() if path.is_file() else ():
        step = record.get("step")
        if type(step) is int and "eval_loss" in record:
            loss, bits = _number(record["eval_loss"]), _number(record.get("eval_bits_per_byte"))
            evaluations[step] = {"step": step, "loss": loss, "bits_per_byte": bits}
        elif type(step) is int and step in steps:
            losses[step] = _number(record.get("loss"))
    newest = {step: max((other for other in evaluations if other <= step), default=None) for step in steps}
    return {
        step: _Figures(losses.get(step), None if (last := newest[step]) is None else evaluations[last])
        for step in steps
    }


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")
    return float(value) if is_number else None  # type: ignore[arg-type]


def _finite(value: float | None) -> float | str | None:
    """Return a figure as metrics.jsonl writes it: JSON has no number for the others."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
