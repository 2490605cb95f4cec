"""The state of a run, found without taking its lock."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import psutil

from holdfast.bootstrap.run_folder.folder import TRAINING
from holdfast.bootstrap.run_folder.run_lock import holder_of, is_locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_BOUNDS = ("RunStarted", "RunFinished", "RunFailed")
_CLOCK_SLACK_SECONDS = 2.0


def state_of(folder: Path, record: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Return training, starting, finished, stopped, "stopped early", failed, crashed or "not begun".

    ``record`` is the content of ``run.json`` and ``events`` are the lines of ``events.jsonl``. The lock of the run is
    only tried if its process is on another machine.
    """
    start = record.get("start", {})
    end: Mapping[str, Any] = next((event for event in reversed(events) if event.get("event") in _BOUNDS), {})
    is_after_start = str(end.get("time", "")) >= str(start.get("time", ""))
    has_ended = end.get("event") in ("RunFinished", "RunFailed") and is_after_start
    if not has_ended and _is_held(folder):
        return "training" if record and start.get("phase", TRAINING) == TRAINING else "starting"
    if not record:
        return "not begun"
    if "error" in start:
        return "failed"
    if not has_ended:
        return "crashed"
    return "failed" if end["event"] == "RunFailed" else _end_state(events)


def _end_state(events: Sequence[Mapping[str, Any]]) -> str:
    """Return how the last start of a run has ended, given that it has not failed."""
    names = [event.get("event") for event in events]
    last_start = max((at for at, name in enumerate(names) if name == "RunStarted"), default=0)
    stops = [event for event in events[last_start:] if event.get("event") == "StopRequested"]
    if any(stop.get("is_early") is True for stop in stops):
        return "stopped early"
    return "stopped" if stops and "DataEnded" not in names[last_start:] else "finished"


def _is_held(folder: Path) -> bool:
    """Return whether the process that took the lock of the run still runs."""
    holder = holder_of(folder)
    if holder is None or holder.host != socket.gethostname():
        return is_locked(folder)
    try:
        return psutil.Process(holder.pid).create_time() <= holder.since + _CLOCK_SLACK_SECONDS
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
