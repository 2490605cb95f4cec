"""Run folders that are written by hand, for tests of what reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

BEGAN = "2026-11-25T10:00:00+00:00"


def event(kind: str, step: int, **more: Any) -> dict[str, Any]:
    """Return a line of ``events.jsonl``."""
    return {"time": BEGAN, "event": kind, "step": step, "tokens": 64 * step, "samples": 4 * step, **more}


def write_run(
    folder: Path,
    *,
    losses: Sequence[float | str] = (),
    events: Sequence[Mapping[str, Any]] = (),
    settings: Sequence[str] = (),
    **record: Any,
) -> Path:
    """Write a run folder whose step N has the loss ``losses[N - 1]``; ``record`` replaces parts of ``run.json``."""
    folder.mkdir(parents=True)
    chosen = dump_settings(load_settings([], [f"run.name={folder.name}", *settings], {}).settings)
    start = {"time": BEGAN, "phase": "training"}
    usual = {"schema": 1, "created": BEGAN, "id": "a" * 32, "auto": {}, "facts": {}, "history": [], "start": start}
    (folder / "run.json").write_text(json.dumps(usual | {"settings": chosen} | record))
    lines = [{"step": step, "tokens": 64 * step, "loss": loss, "lr": 0.1} for step, loss in enumerate(losses, start=1)]
    write_lines(folder / "metrics.jsonl", lines)
    write_lines(folder / "events.jsonl", events)
    return folder


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write ``records`` as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
