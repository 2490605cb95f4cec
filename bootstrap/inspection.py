"""What `inspect` shows of a run folder or a checkpoint."""

from __future__ import annotations

import json
import math
import os
import sys
import time
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

    from adapters.state_store.inspection import CheckpointReport, StoreReport

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SHORT_HASH = len("blake3:") + 12
_LONGEST_CELL = 200
_MOST_PROBLEMS = 3


def inspect(path: Path, *, hashing: bool, as_json: bool) -> tuple[str, bool]:
    """Return what to print about the run folder or checkpoint ``path``, and whether all that was looked at verifies.

    Without ``hashing`` only names and sizes are compared. The text holds no control character but line ends. Raises
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
        return json.dumps(report, indent=1, allow_nan=False), report["sound"]
    return "\n".join((_checkpoint_lines if "files" in report else _run_lines)(report)), report["sound"]


def _run(path: Path, folder: Path, *, hashing: bool) -> dict[str, Any]:
    store = Inspector(hashing=hashing, count=_Progress().count).store(folder)
    if not store.checkpoints:
        set_aside = f" but {len(store.quarantine)} in quarantine" if store.quarantine else ""
        msg = f"{path} holds no checkpoints{set_aside}: name a run that has saved one, such as runs/default"
        raise StateError(msg)
    figures = _figures(folder / "metrics.jsonl", {_step(report) for report in store.checkpoints})
    return {
        "run": str(path),
        "sound": not any(report.problems for report in store.checkpoints),
        "checkpoints": [
            _summary(report, hashing=hashing) | {"step": _step(report)} | figures[_step(report)]
            for report in store.checkpoints
        ],
        "quarantine": [{"name": entry.name, "reason": entry.flaw} for entry in store.quarantine],
        "resume": _resume(store, hashing=hashing),
    }


def _checkpoint(path: Path, folder: Path, *, hashing: bool) -> dict[str, Any]:
    report = Inspector(hashing=hashing, count=_Progress().count).checkpoint(folder)
    manifest = report.manifest
    states = dict.fromkeys(report.sound, _good_state(hashing=hashing))
    states |= {problem.path: problem.flaw for problem in report.problems if problem.path is not None}
    files = [
        {"path": file.path, "bytes": file.size, "hash": file.hash, "state": states.pop(file.path, "not checked")}
        for file in (manifest.files if manifest else ())
    ]
    files += [{"path": name, "bytes": None, "hash": None, "state": state} for name, state in states.items()]
    return {
        "checkpoint": str(path),
        "sound": not report.problems,
        **_summary(report, hashing=hashing),
        "generation": manifest.generation if manifest else None,
        "schema": SCHEMA if manifest else None,
        "evaluation_loss": manifest.evaluation_loss if manifest else None,
        "files": files,
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
        "problems": [
            {"flaw": problem.flaw, "file": problem.path, "reason": problem.reason} for problem in report.problems
        ],
    }


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


def _figures(path: Path, steps: Collection[int]) -> Mapping[int, dict[str, Any]]:
    """Return the loss of each of ``steps`` and the last evaluation up to it, as far as metrics.jsonl has them."""
    losses: dict[int, object] = {}
    evaluations: dict[int, Mapping[str, object]] = {}
    for record in JsonLines(path).read() if path.is_file() else ():
        step = record.get("step")
        if type(step) is int and step >= 0 and "eval_loss" in record:
            loss, bits = _figure(record["eval_loss"]), _figure(record.get("eval_bits_per_byte"))
            evaluations[step] = {"step": step, "loss": loss, "bits_per_byte": bits}
        elif type(step) is int and step in steps:
            losses[step] = _figure(record.get("loss"))
    newest = {step: max((other for other in evaluations if other <= step), default=-1) for step in steps}
    return {step: {"loss": losses.get(step), "evaluation": evaluations.get(newest[step])} for step in steps}


def _figure(value: object) -> float | str | None:
    """Return a number, or the text by which metrics.jsonl writes one that JSON does not have; anything else is None."""
    if isinstance(value, str):
        return value if value in {"NaN", "Infinity", "-Infinity"} else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _run_lines(report: Mapping[str, Any]) -> Sequence[str]:
    found = report["checkpoints"]
    num_bytes = sum(checkpoint["bytes"] or 0 for checkpoint in found)
    counted = f"{len(found)} checkpoint{'' if len(found) == 1 else 's'}"
    header = ("step", "tokens", "reason", "saved (UTC)", "size", "state", "loss", "eval loss", "bits/byte", "at step")
    table = _table(">><<><>>>>", [header, *map(_run_row, found)])
    lines = [f"{one_line(report['run'])}: {counted}, {_readable(num_bytes)}", "", *table, ""]
    for checkpoint in found:
        problems = [f"{checkpoint['name']} {line}" for line in _problem_lines(checkpoint)]
        lines += problems[:_MOST_PROBLEMS]
        if (more := len(problems) - _MOST_PROBLEMS) > 0:
            lines.append(f"{checkpoint['name']} has {more} more: inspect that folder to see them")
    for entry in report["quarantine"]:
        lines.append(f"in quarantine: {one_line(entry['name'])} ({entry['reason'] or 'its name gives no reason'})")
    return [*lines, report["resume"]["text"]]


def _run_row(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    evaluation = checkpoint["evaluation"] or {"loss": None, "bits_per_byte": None, "step": None}
    return (
        _shown(checkpoint["step"]),
        _shown(checkpoint["tokens"]),
        _shown(checkpoint["reason"]),
        _time(checkpoint["saved"]),
        _readable(checkpoint["bytes"]),
        checkpoint["state"],
        _shown(checkpoint["loss"]),
        _shown(evaluation["loss"]),
        _shown(evaluation["bits_per_byte"]),
        _shown(evaluation["step"]),
    )


def _checkpoint_lines(report: Mapping[str, Any]) -> Sequence[str]:
    facts = [
        *((name, _shown(report[name])) for name in ("step", "tokens", "reason", "generation", "schema")),
        ("evaluation loss", _shown(report["evaluation_loss"])),
        ("saved (UTC)", _time(report["saved"])),
        ("size", _readable(report["bytes"])),
        ("state", report["state"]),
    ]
    rows = [
        (_shown(file["path"]), _readable(file["bytes"]), _shown(file["hash"], _SHORT_HASH), file["state"])
        for file in report["files"]
    ]
    table = ["", *_table("<><<", [("file", "size", "hash", "state"), *rows])] if rows else []
    problems = ["", *_problem_lines(report)] if report["problems"] else []
    return [one_line(report["checkpoint"]), "", *_table("<<", facts), *table, *problems]


def _problem_lines(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    return [f"{problem['flaw']}: {one_line(problem['reason'])}" for problem in checkpoint["problems"]]


def _table(alignments: str, rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return ``rows`` as lines; ``alignments`` has one ``<`` or ``>`` a column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(format, row, map("{}{}".format, alignments, widths))).rstrip() for row in rows]


def _shown(value: float | str | None, limit: int = _LONGEST_CELL) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else one_line(value)[:limit]


def _time(saved: str | None) -> str:
    return "-" if saved is None else saved[:19].replace("T", " ")


def _readable(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "-"
    power = min((num_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{num_bytes / 1024**power:.1f} {_UNITS[power - 1]}" if power > 0 else f"{num_bytes} B"


@final
class _Progress:
    """Tells a person who waits how much was hashed."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._next = time.monotonic() + 2.0

    def count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if time.monotonic() >= self._next:
            self._next += 5.0
            sys.stderr.write(f"hashed {_readable(self._num_bytes)} so far; --quick compares names and sizes only\n")
