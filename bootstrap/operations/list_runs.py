"""The training runs below a folder: their states, figures, versions of data, and the settings in which they differ."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.json_lines import bounded_lines
from holdfast.adapters.shared.files.regular_file import open_regular
from holdfast.adapters.shared.network.hub_names import guess
from holdfast.bootstrap.process.text_table import cut, table_within
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import flatten, read_record
from holdfast.bootstrap.run_reading.formatting import minute, number, share
from holdfast.bootstrap.run_reading.growing_file import newest_records, records_in
from holdfast.bootstrap.run_reading.run_state import last_step, refusal_of, state_of
from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from holdfast.domain.run_end import LifecycleState

_DEEPEST = 4
_OF_TRACKERS = "mlflow-artifacts"  # a folder that the monitor mlflow makes beside run folders
_NOT_COMPARED = ("run.name", "run.dir")


@final
@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a run, as far as they are recorded.

    ``loss`` is that of the last recorded step, ``eval_loss`` and ``best_eval_loss`` are those of the last and of the
    best evaluation. ``eval_reward_accuracy`` is that of the last evaluation of preferences.
    """

    step: int | None
    tokens: int | None
    loss: float | str | None
    eval_loss: float | str | None
    best_eval_loss: float | None
    eval_reward_accuracy: float | str | None = None


@final
@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run as its folder describes it.

    ``ended`` is the time of the last sign of life, None while a process works on the run. ``settings`` are those in
    which the runs differ.
    """

    name: str
    path: str
    state: LifecycleState
    figures: RunFigures
    data_versions: Sequence[str]
    started: str | None
    ended: str | None
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON."""
        record = asdict(self)
        return {"name": record.pop("name"), "path": self.path, "state": self.state, **record.pop("figures"), **record}


def list_runs(folder: Path, *, as_json: bool, width: int) -> str:
    """Return a table of the runs below ``folder`` in the order in which they began, its lines within ``width``.

    No checkpoint is read. Folders that hold no run, or whose record cannot be read, are named after the table. Raises
    ``StateError`` if there is no run.
    """
    runs, others = _find(folder)
    if not runs and not others:
        msg = f"there are no runs below {folder}: `train` makes them, or name another folder"
        raise StateError(msg)
    listed = sorted(_with_differences(runs), key=lambda run: (run.started or "", run.path))
    if as_json:
        listing = {"folder": str(folder), "runs": [run.to_json() for run in listed], "others": others}
        return json.dumps(listing, indent=1)
    return "\n".join(_lines(folder, listed, others, width))


def _find(folder: Path) -> tuple[list[tuple[RunEntry, AbstractSet[str]]], dict[str, str]]:
    """Return the runs, each with the names of the settings that somebody chose, and why other folders hold none."""
    if not folder.is_dir():
        msg = f"{folder} is no folder: name the one that holds the run folders, such as runs{guess(str(folder))}"
        raise StateError(msg)
    runs, others = [], {}
    for path, is_run in _folders(folder, _DEEPEST):
        shown = "." if path == folder else str(path.relative_to(folder))
        if not is_run:
            others[shown] = _without_run(path)
            continue
        try:
            record = read_record(path)
            if (refusal := refusal_of(path, record)) is not None:
                others[shown] = f"holds no run, as its first start was refused: {one_line(refusal)}"
            else:
                entry = _entry(path, path.resolve().name if path == folder else shown, record)
                runs.append((entry, record.get("origins", {}).keys()))
        except StateError as error:
            others[shown] = one_line(str(error))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            others[shown] = f"cannot be read ({type(error).__name__}: {one_line(str(error))})"
    return runs, others


def _without_run(path: Path) -> str:
    if not RunLayout(path).is_unwritten:
        return "holds no run"
    return f"{state_of(path, {}, [])}: holds the lock of a start, and no run yet"


def _folders(folder: Path, depth: int) -> Iterator[tuple[Path, bool]]:
    """Yield run folders with True, and each folder without a run in it or below with False."""
    if RunLayout(folder).holds_run:
        yield folder, True
        return
    try:
        with os.scandir(folder) as entries:
            names = (entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
            below = sorted(name for name in names if name != _OF_TRACKERS)
    except OSError:
        below = []
    folders = [each for name in below if depth for each in _folders(folder / name, depth - 1)]
    if any(is_run for _, is_run in folders) or depth == _DEEPEST:
        yield from folders
    else:
        yield folder, False


def _entry(path: Path, name: str, record: Mapping[str, Any]) -> RunEntry:
    layout = RunLayout(path)
    events = _records(layout.events)
    of_evaluations = [each.get("loss") for each in events if each.get("event") == "EvaluationCompleted"]
    newest = [each for each in newest_records(layout.metrics) if type(each.get("step")) is int]
    losses = [each for each in newest if "loss" in each]
    evaluations = [each for each in newest if "eval_loss" in each]
    state = state_of(path, record, events)
    last = losses[-1] if losses else {}
    versions = {entry["name"]: entry["id"] for entry in versions_read(record)}
    return RunEntry(
        name=name,
        path=str(path),
        state=state,
        figures=RunFigures(
            step=last_step(layout, newest) or None,
            tokens=last.get("tokens"),
            loss=last.get("loss"),
            eval_loss=evaluations[-1]["eval_loss"] if evaluations else None,
            best_eval_loss=min((loss for loss in of_evaluations if isinstance(loss, float)), default=None),
            eval_reward_accuracy=evaluations[-1].get("eval_reward_accuracy") if evaluations else None,
        ),
        data_versions=list(versions.values()),
        started=record.get("created"),
        ended=None if state.is_active else _ended(layout, events, record),
        settings=flatten(record["settings"]),
    )


def _ended(layout: RunLayout, events: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> str | None:
    """Return the time of the last sign of life, as far as it is recorded."""
    times = [events[-1].get("time") if events else None, record.get("start", {}).get("time")]
    if layout.metrics.exists():
        times.append(datetime.fromtimestamp(layout.metrics.stat().st_mtime, UTC).isoformat(timespec="seconds"))
    return max((time for time in times if isinstance(time, str)), default=None)


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file with a JSON object a line; none of a file that cannot be read."""
    try:
        with open_regular(path) as file:
            return [record for line in bounded_lines(file) for record in records_in(line)]
    except OSError:
        return []


def _with_differences(found: Sequence[tuple[RunEntry, AbstractSet[str]]]) -> list[RunEntry]:
    """Return the runs of ``found`` with only the settings in which they differ; each comes with the chosen ones.

    A setting that belongs to the kinds of some runs only differs if it has several values or somebody chose it.
    """
    runs = [run for run, _ in found]
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for key, value in run.settings.items():
            values[key].add(json.dumps(value))
    partial = {key for key in values if any(key not in run.settings for run in runs)}
    chosen = {key for _, keys in found for key in keys}
    differing = {key for key, several in values.items() if len(several) > 1} | (partial & chosen)
    differing -= {*_NOT_COMPARED}
    return [
        replace(run, settings={key: run.settings[key] for key in sorted(differing & run.settings.keys())})
        for run in runs
    ]


def _lines(folder: Path, runs: Sequence[RunEntry], others: Mapping[str, str], width: int) -> Iterator[str]:
    yield f"{counted(len(runs), 'run')} below {folder}"
    if runs:
        header = ("run", "state", "step", "tokens", "loss", "eval", "best eval", "data", "started (UTC)", "ended (UTC)")
        rows, columns, spare = [header, *map(_row, runs)], "<<>>>>><<<", (9, 3, 8, 5, 7, 4, 2)
        if any(run.figures.eval_reward_accuracy is not None for run in runs):  # of preferences
            shares = ["in order", *(share(run.figures.eval_reward_accuracy) for run in runs)]
            rows = [(*row, share) for row, share in zip(rows, shares, strict=True)]
            columns += ">"
        yield ""
        yield from table_within(width, columns, rows, spare)
    if any(run.settings for run in runs):
        yield ""
        yield "settings that differ:"
        longest = min(max(len(run.name) for run in runs), max(8, width // 3))
        for run in runs:
            settings = " ".join(f"{key}={_value(value)}" for key, value in run.settings.items())
            yield cut(f"{cut(one_line(run.name), longest):{longest}}  {one_line(settings)}".rstrip(), width)
    if others:
        yield ""
        yield from (f"{one_line(name)}: {reason}" for name, reason in others.items())


def _row(run: RunEntry) -> Sequence[str]:
    version, *more = run.data_versions or ["-"]
    return (
        one_line(run.name),
        run.state,
        number(run.figures.step),
        number(run.figures.tokens),
        number(run.figures.loss),
        number(run.figures.eval_loss),
        number(run.figures.best_eval_loss),
        version + (f" +{len(more)}" if more else ""),
        minute(run.started),
        minute(run.ended),
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
