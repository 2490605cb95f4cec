"""All that a report says about a run, as plain data, read from the run folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.files.json_lines import JsonLines, without_non_finite
from holdfast.adapters.shared.files.regular_file import parse_json
from holdfast.application.data.rejected_records import reason_of
from holdfast.bootstrap.operations.explain import explain
from holdfast.bootstrap.operations.repeat_command import repeat_command, with_defaults
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_whole_record
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.bootstrap.stages.attach.run_records import goodput_of
from holdfast.bootstrap.stages.open_run.record_files import rejected_in
from holdfast.bootstrap.stages.prepare.dataset_versions import VersionStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bootstrap.run_reading.metric_table import Curve

Facts = dict[str, Any]

AT_EVALUATIONS = ("eval", "suite/")
"""The beginnings of the names of metrics that evaluations record."""

_SCHEMA = 1
_MOST_POINTS = 2_000
_MOST_SAMPLES = 100
_IN_OTHER_TABLES = {"evaluation", "checkpoint", "archive", "checkpoint moved"}
_COUNTED = {
    "roll_backs": "RolledBack",
    "memory_retries": "MemoryExhausted",
    "dropped_updates": "UpdateDropped",
    "failed_saves": "CheckpointFailed",
    "failed_archives": "ArchiveFailed",
    "damaged_checkpoints": "CheckpointRejected",
    "stalls": "RunStalled",
    "waits_for_data": "DataStalled",
    "data_drifts": "DataDrifted",
    "handler_failures": "HandlerFailed",
    "failures": "RunFailed",
}


def report_facts(run: Path, *, most_points: int = _MOST_POINTS) -> Facts:
    """Return the facts about the run folder ``run``, ready for JSON; numbers that are not finite are text.

    Nothing is written, so it works while the run trains. A series of training steps has at most about ``most_points``
    points. Raises ``StateError`` if ``run`` is no run folder or cannot be read.
    """
    record = read_whole_record(run)
    view = RunView(run, name=name_of_run(run, record)).read_all()
    curves = view.curves(view.metrics, width=most_points)
    view.close()
    facts: Facts = without_non_finite(
        {
            "schema": _SCHEMA,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            **_state(view, curves),
            "data": data_facts(record),
            "supervision": _supervision(RunLayout(run).supervision),
            **_history(run),
            "events": [note.to_json() for note in view.notes if note.kind not in _IN_OTHER_TABLES],
            "evaluations": _evaluations(curves),
            "samples": view.samples(_MOST_SAMPLES),
            "checkpoints": view.checkpoints(),
            "settings": _settings(view, record["settings"]),
            "lineage": {"model": base_model_facts(record["settings"]), **_kept(record, "history", "facts")},
            "repeat": asdict(repeat_command(record["settings"])),
            "series": _series(curves),
        }
    )
    return facts


def _state(view: RunView, curves: Mapping[str, Curve]) -> Facts:
    """Return the identity and the state of a run, and its most important figures."""
    summary = view.summary()
    return {
        **{name: summary[name] for name in ("name", "path", "id", "state")},
        "started": summary["created"],
        "last_sign_of_life": summary["last_sign"],
        "explanation": [] if summary["state"] in ("finished", "training") else explain(view.folder).splitlines(),
        "figures": {
            **{name: summary[name] for name in ("step", "tokens", "loss", "eval_loss", "budget", "parameters")},
            "best_evaluation": _best_evaluation(view, curves),
        },
    }


def _best_evaluation(view: RunView, curves: Mapping[str, Curve]) -> Facts | None:
    """Return the figures of the best evaluation with the metric by which it is the best, None without one."""
    if (best := view.best_evaluation()) is None:
        return None
    figures = next((each for each in _evaluations(curves) if each["step"] == best["step"]), {})
    return {**figures, "step": best["step"], best["metric"]: best["value"], "metric": best["metric"]}


def _history(run: Path) -> Facts:
    """Return what happened in the starts of a run, in numbers, and the environment of each start."""
    layout, goodput = RunLayout(run), goodput_of(run)
    events = list(JsonLines(layout.events).read())
    starts = [each for each in events if each.get("event") == "RunStarted"]
    return {
        "incidents": _incidents(layout, events),
        "restarts": list(JsonLines(layout.restarts).read()),
        "goodput": {
            "share": goodput.share,
            "wall_seconds": goodput.wall_seconds,
            "starts": goodput.starts,
            "seconds": {str(kind): seconds for kind, seconds in goodput.seconds.items()},
        },
        "environments": [
            {**_kept(each, "time", "step", "ranks", "device"), **each["environment"]}
            for each in starts
            if isinstance(each.get("environment"), dict)
        ],
    }


def name_of_run(run: Path, record: Mapping[str, Any]) -> str:
    """Return the name in the settings of the run, or that of its folder if it was given a folder and no name."""
    chosen = record["settings"].get("run", {})
    is_unnamed = chosen.get("name", "default") == "default"
    if is_unnamed and (chosen.get("dir") is not None or "name" not in chosen):
        return run.resolve().name
    return str(chosen["name"])


def _kept(record: Mapping[str, Any], *names: str) -> Facts:
    return {name: record[name] for name in names if name in record}


def _settings(view: RunView, settings: Mapping[str, Any]) -> list[Facts]:
    """Return each setting with its origin and choice, its default, and whether its value differs from that."""
    fields = {each.name: each for each in with_defaults(settings)}
    return [
        {**each, "default": fields[each["name"]].default, "is_changed": fields[each["name"]].is_changed}
        for each in view.settings()
    ]


def _series(curves: Mapping[str, Curve]) -> Facts:
    """Return the curves as lists.

    A metric that a few training steps lack has NaN there if each point is one step, so that a loss that was not a
    number is a gap and not a straight line.
    """
    found, all_steps = {}, curves["tokens"].step if "tokens" in curves else np.array([], np.int64)
    for name, curve in curves.items():
        steps, values = curve.step, curve.value
        if curve.low is None and not name.startswith(AT_EVALUATIONS) and len(all_steps) / 2 < len(steps):
            missing = np.setdiff1d(all_steps, steps)
            order = np.argsort(np.concatenate([steps, missing]), kind="stable")
            steps = np.concatenate([steps, missing])[order]
            values = np.concatenate([values, np.full(len(missing), np.nan)])[order]
        low, high = ((None if each is None else each.tolist()) for each in (curve.low, curve.high))
        found[name] = {"steps": steps.tolist(), "values": values.tolist(), "low": low, "high": high}
    return found


def data_facts(record: Mapping[str, Any]) -> Facts:
    """Return the sources in the ``record`` of a run, and the versions of datasets that it has read."""
    data, kept = record["settings"].get("data", {}), record.get("data")
    mixture = data.get("sources")
    sources = mixture if isinstance(mixture, dict) else {"": data}
    return {
        "kind": data.get("kind"),
        "mode": record["auto"].get("data.mode", {}).get("value", data.get("mode")),
        "label": data.get("label"),
        "sources": [
            {"name": name, **{key: source[key] for key in ("kind", "path", "weight", "split") if source.get(key)}}
            for name, source in sources.items()
            if isinstance(source, dict)
        ],
        "num_files": len(kept["files"]) if isinstance(kept, dict) and isinstance(kept.get("files"), list) else None,
        "versions": [_version(each) for each in versions_read(record)],
    }


def _supervision(file: Path) -> Facts | None:
    """Return which tokens are trained on, as the run recorded it; None for runs on plain text, and for other JSON."""
    try:
        content = parse_json(file.read_bytes())
        return {
            "sentences": [str(each) for each in content["sentences"]],
            "sources": {
                name: {**each, "supervised": int(each["supervised"]), "tokens": int(each["tokens"])}
                for name, each in content["sources"].items()
            },
            "rows": [
                [[(str(text), bool(is_trained)) for text, is_trained in document] for document in row]
                for row in content["rows"]
            ],
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _version(entry: Mapping[str, str]) -> Facts:
    """Return the version that a run has read; only its id, name and cache if it is no longer there."""
    if (version := VersionStore(Path(entry["cache"])).get(entry["id"])) is None:
        return {**entry, "is_there": False}
    return {
        **entry,
        "is_there": True,
        "created": version.created,
        "parents": list(version.parents),
        "totals": asdict(version.totals),
        "steps": [f"{step.name} ({step.package} {step.version})" for step in version.steps],
    }


def base_model_facts(settings: Mapping[str, Any]) -> Facts:
    """Return the kind of the model in the recorded ``settings``, and the weights that it began with, if any."""
    model = settings.get("model", {})
    return {key: model[key] for key in ("kind", "path", "revision", "pretrained") if model.get(key) is not None}


def _incidents(layout: RunLayout, events: list[dict[str, Any]]) -> Facts:
    kinds = Counter(str(each.get("event")) for each in events)
    rejected = Counter(map(reason_of, rejected_in(layout)))
    return {
        "starts": kinds["RunStarted"],
        "crashes": sum(1 for _ in JsonLines(layout.restarts).read()),
        **{name: kinds[kind] for name, kind in _COUNTED.items()},
        "rejected_records": rejected.total(),
        "rejected_by_rule": dict(rejected.most_common()),
    }


def _evaluations(curves: Mapping[str, Curve]) -> list[Facts]:
    """Return the metrics of each evaluation by step, in ascending order."""
    rows: dict[int, Facts] = {}
    for name, curve in curves.items():
        if name.startswith(AT_EVALUATIONS):
            for step, value in zip(curve.step.tolist(), curve.value.tolist(), strict=True):
                rows.setdefault(step, {"step": step})[name] = value
    return [rows[step] for step in sorted(rows)]
