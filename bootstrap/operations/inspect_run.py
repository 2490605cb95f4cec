"""The report of `inspect`: the checkpoints of a run and whether they verify."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.json_lines import JsonLines, without_non_finite
from holdfast.adapters.state_store.checkpoint_inspection import CheckpointInspector, is_checkpoint
from holdfast.adapters.state_store.manifest import SCHEMA
from holdfast.bootstrap.process.text_table import table
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.metrics_record import read_metrics
from holdfast.bootstrap.run_folder.record_file import meant_run
from holdfast.bootstrap.run_reading.formatting import moment, number
from holdfast.bootstrap.run_reading.run_state import best_among
from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import StateError
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from holdfast.adapters.state_store.checkpoint_inspection import CheckpointReport, StoreReport
    from holdfast.domain.phase import ShowPhase

_SHORT_HASH = len("blake3:") + 12
_MOST_PROBLEMS = 3
_LONGEST_CELL = 200


def inspect(
    path: Path,
    *,
    hashing: bool,
    as_json: bool,
    copies: Collection[int] | None = None,
    show: ShowPhase = show_nothing,
) -> tuple[str, bool]:
    """Return the text about the run folder or checkpoint ``path``, and whether all its checkpoints verify.

    Without ``hashing`` only names and sizes are compared. ``copies`` are the steps in the run's archive, None if the
    archive was not read. ``show`` gets the bytes that were hashed. The text has no control characters except line ends.
    Raises ``StateError`` if there is no checkpoint or ``path`` cannot be read.
    """
    try:
        grave = path.parents[1] / "erased" / path.name if len(path.parents) > 1 else path
        folder = Path(os.path.realpath(grave if grave.is_dir() and not path.exists() else path, strict=True))
        report = (
            _checkpoint(path, folder, _Hashing(folder, show), hashing=hashing)
            if is_checkpoint(folder)
            else _run(path, folder, _Hashing(RunLayout(folder).checkpoints, show), hashing=hashing, copies=copies)
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        wanted = "name a run, such as runs/default, or one of its checkpoints"
        msg = f"{one_line(str(path))} is no folder: {wanted}{meant_run(path)}"
        raise StateError(msg) from error
    except OSError as error:
        msg = f"{one_line(str(path))} cannot be read, {explain(error)}"
        raise StateError(msg) from error
    except StateError as error:
        raise StateError(one_line(str(error))) from error
    if as_json:
        return json.dumps(report, indent=1, allow_nan=False), report["sound"]
    return "\n".join((_checkpoint_lines if "files" in report else _run_lines)(report)), report["sound"]


def _run(path: Path, folder: Path, shown: _Hashing, *, hashing: bool, copies: Collection[int] | None) -> dict[str, Any]:
    store = CheckpointInspector(hashing=hashing, count=shown.count).store(folder)
    if not store.checkpoints:
        counts = (("in quarantine", store.quarantine), ("erased", store.erased))
        others = " and".join(f" {len(found)} {word}" for word, found in counts if found)
        msg = f"{path} holds no checkpoints{others and ' but'}{others}: name a run that has some, such as runs/default"
        raise StateError(msg)
    figures = _figures(RunLayout(folder).metrics, {_step(report) for report in store.checkpoints})
    suites, best = _suites(RunLayout(folder).evaluations), best_among(store.checkpoints)
    return {
        "run": str(path),
        "sound": not any(report.problems for report in store.checkpoints),
        "checkpoints": [
            _summary(report, hashing=hashing)
            | {"step": _step(report), "best": _step(report) == best, "pinned": _step(report) in store.pinned}
            | {"tiers": ["disk", "archive"] if _step(report) in (copies or ()) else ["disk"]}
            | figures[_step(report)]
            | {"suites": suites.get(_step(report), {})}
            for report in store.checkpoints
        ],
        "archived": None if copies is None else sorted(copies),
        "quarantine": [{"name": entry.name, "reason": entry.flaw} for entry in store.quarantine],
        "erased": [{"name": name, "time": time} for name, time in store.erased],
        "resume": _resume(store, hashing=hashing),
    }


def _checkpoint(path: Path, folder: Path, shown: _Hashing, *, hashing: bool) -> dict[str, Any]:
    report = CheckpointInspector(hashing=hashing, count=shown.count).checkpoint(folder)
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
        "evaluation_loss": manifest.snapshot.evaluation_loss if manifest else None,
        "conditions": dict(manifest.snapshot.conditions) if manifest else None,
        "provenance": dict(manifest.provenance) if manifest else None,
        "files": files,
    }


def _summary(report: CheckpointReport, *, hashing: bool) -> dict[str, Any]:
    manifest = report.manifest
    return {
        "name": report.name,
        "step": manifest.progress.step if manifest else None,
        "tokens": manifest.progress.tokens if manifest else None,
        "reason": manifest.snapshot.reason if manifest else None,
        "contract": manifest.snapshot.contract if manifest else None,
        "saved": report.saved.isoformat(timespec="seconds") if report.saved else None,
        "bytes": manifest.num_bytes if manifest else None,
        "key": manifest.wrapped_key.key_id if manifest and manifest.wrapped_key else None,
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
    newest = store.resumable
    if newest is None:
        return {"takes": None, "text": "a resume would find no checkpoint that verifies"}
    if newest.problems:
        return {"takes": None, "text": f"a resume would end with an error at {newest.name}"}
    condition = "" if hashing else ", if its bytes verify"
    return {"takes": newest.name, "text": f"a resume would take {newest.name}{condition}"}


def _figures(path: Path, steps: Collection[int]) -> Mapping[int, dict[str, Any]]:
    """Return, for each of ``steps``, the loss and the last evaluation up to it, if metrics.jsonl has them."""
    losses: dict[int, object] = {}
    evaluations: dict[int, Mapping[str, object]] = {}
    for step, metrics in read_metrics(path) if path.is_file() else ():
        if "eval_loss" in metrics:
            figures = {"loss": metrics["eval_loss"], "bits_per_byte": metrics.get("eval_bits_per_byte")}
            evaluations[step] = {"step": step, **without_non_finite(figures)}
        elif step in steps and "loss" in metrics:
            losses[step] = without_non_finite(metrics["loss"])
    newest = {step: max((other for other in evaluations if other <= step), default=-1) for step in steps}
    return {step: {"loss": losses.get(step), "evaluation": evaluations.get(newest[step])} for step in steps}


def _suites(path: Path) -> Mapping[int, Mapping[str, Mapping[str, object]]]:
    """Return the metrics of each task, by the step of the checkpoint, that evaluations.jsonl has; the last count."""
    by_step: dict[int, dict[str, dict[str, object]]] = {}
    for record in JsonLines(path).read() if path.is_file() else ():
        step, results = record.get("step"), record.get("results")
        if type(step) is int and isinstance(results, dict):
            tasks = ((task, figures) for task, figures in results.items() if isinstance(figures, dict))
            numbers = {task: {name: _figure(value) for name, value in figures.items()} for task, figures in tasks}
            by_step.setdefault(step, {}).update(numbers)
    return by_step


def _figure(value: object) -> float | str | None:
    """Return a number, or the text that stands in evaluations.jsonl for a number that JSON lacks; else None."""
    if isinstance(value, str):
        return value if value in {"NaN", "Infinity", "-Infinity"} else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _run_lines(report: Mapping[str, Any]) -> Sequence[str]:
    checkpoints = report["checkpoints"]
    num_bytes = sum(checkpoint["bytes"] or 0 for checkpoint in checkpoints)
    counted = f"{len(checkpoints)} checkpoint{'' if len(checkpoints) == 1 else 's'}"
    columns = ("step", "tokens", "reason", "contract", "saved (UTC)", "size", "state")
    header = (*columns, "loss", "eval loss", "bits/byte", "at step")
    rows = table(">><<<><>>>><", [(*header, "also"), *map(_run_row, checkpoints)])
    lines = [f"{one_line(report['run'])}: {counted}, {shown_size(num_bytes)}", "", *rows, ""]
    lines += [line for checkpoint in checkpoints for line in _suite_lines(checkpoint)]
    for checkpoint in checkpoints:
        problems = [f"{checkpoint['name']} {line}" for line in _problem_lines(checkpoint)]
        lines += problems[:_MOST_PROBLEMS]
        if (more := len(problems) - _MOST_PROBLEMS) > 0:
            lines.append(f"{checkpoint['name']} has {more} more: inspect that folder to see them")
    for entry in report["quarantine"]:
        lines.append(f"in quarantine: {one_line(entry['name'])} ({entry['reason'] or 'its name gives no reason'})")
    there = {checkpoint["step"] for checkpoint in checkpoints}
    if away := [f"{step:,}" for step in report["archived"] or () if step not in there]:
        lines.append(f"in the archive alone: {', '.join(away)}")
    lines += [f"erased: {one_line(entry['name'])} {one_line(entry['time'])}" for entry in report["erased"]]
    return [*lines, report["resume"]["text"]]


def _suite_lines(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    return [
        f"{checkpoint['name']} by {one_line(task)}: "
        + ", ".join(f"{one_line(name)} {number(value)}" for name, value in figures.items())
        for task, figures in checkpoint["suites"].items()
    ]


def _run_row(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    evaluation = checkpoint["evaluation"] or {"loss": None, "bits_per_byte": None, "step": None}
    return (
        number(checkpoint["step"]),
        number(checkpoint["tokens"]),
        number(checkpoint["reason"]),
        number(checkpoint["contract"]),
        moment(checkpoint["saved"]),
        shown_size(checkpoint["bytes"]),
        checkpoint["state"],
        number(checkpoint["loss"]),
        number(evaluation["loss"]),
        number(evaluation["bits_per_byte"]),
        number(evaluation["step"]),
        ", ".join(_also(checkpoint)),
    )


def _also(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    """Return further remarks on a checkpoint in a run."""
    facts = {
        "best": checkpoint["best"],
        "pinned": checkpoint["pinned"],
        "encrypted": checkpoint["key"] is not None,
        "archived": "archive" in checkpoint["tiers"],
    }
    return [name for name, holds in facts.items() if holds]


def _checkpoint_lines(report: Mapping[str, Any]) -> Sequence[str]:
    facts = [
        *((name, number(report[name])) for name in ("step", "tokens", "reason", "contract", "generation", "schema")),
        *((name, number(value)) for name, value in (report["conditions"] or {}).items()),
        *((("origin", _origin(report["provenance"])),) if report["provenance"] else ()),
        ("evaluation loss", number(report["evaluation_loss"])),
        ("saved (UTC)", moment(report["saved"])),
        ("size", shown_size(report["bytes"])),
        ("key", number(report["key"])),
        ("state", report["state"]),
    ]
    rows = [
        (
            number(file["path"], _LONGEST_CELL),
            shown_size(file["bytes"]),
            number(file["hash"])[:_SHORT_HASH],
            file["state"],
        )
        for file in report["files"]
    ]
    files = ["", *table("<><<", [("file", "size", "hash", "state"), *rows])] if rows else []
    problems = ["", *_problem_lines(report)] if report["problems"] else []
    return [one_line(report["checkpoint"]), "", *table("<<", facts), *files, *problems]


def _origin(provenance: Mapping[str, Any]) -> str:
    """Return a phrase on the checkpoints that an average was made of."""
    members = provenance.get("of")
    listed = members if isinstance(members, list) else []
    steps = [str(member.get("step")) for member in listed if isinstance(member, dict)]
    return one_line(f"{provenance.get('kind', 'unknown')} of {', '.join(steps)}", _LONGEST_CELL)


def _problem_lines(checkpoint: Mapping[str, Any]) -> Sequence[str]:
    return [f"{problem['flaw']}: {one_line(problem['reason'])}" for problem in checkpoint["problems"]]


@final
class _Hashing:
    """Shows a waiting user how many bytes of the files in ``folder`` were hashed."""

    def __init__(self, folder: Path, show: ShowPhase) -> None:
        self._show = show
        self._done = 0
        self._total = sum(_size(path) for path in folder.rglob("*"))

    def count(self, num_bytes: int) -> None:
        """Add ``num_bytes``."""
        self._done += num_bytes
        self._show("hashing, --quick compares names and sizes only", Amount(self._done, self._total))


def _size(path: Path) -> int:
    """Return the size of a file, 0 if it was deleted meanwhile or is none."""
    try:
        return path.lstat().st_size if path.is_file() else 0
    except OSError:
        return 0
