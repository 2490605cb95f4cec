"""The state of a run, found without taking its lock."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import psutil

from holdfast.bootstrap.run_folder.folder import TRAINING
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.run_lock import holder_of, is_locked
from holdfast.domain.run_end import LifecycleState, RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_CLOCK_SLACK_SECONDS = 2.0
_SILENT_SECONDS = 90.0  # a heartbeat comes every five seconds; a file server may show it a minute later
_REFUSALS = ("ConfigurationError: ", "DataError: ", "StateError: ")


def state_of(folder: Path, record: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> LifecycleState:
    """Return the state of the run in ``folder``; every command, page and report asks here.

    ``record`` is the content of ``run.json``, empty without one, and ``events`` are the lines of ``events.jsonl``. The
    lock of the run is only tried if its process is on another machine.
    """
    start = record.get("start", {})
    own = events_of_last_start(start, events)
    end = LifecycleState.STOPPED if "stopped" in start else _end_of(own)  # the process may live on: that of a host
    end = LifecycleState.FAILED if "error" in start else end
    if end in (LifecycleState.CRASHED, LifecycleState.HUNG) and (holder := _status_of_holder(folder)) is not None:
        if holder == psutil.STATUS_STOPPED:
            return LifecycleState.SUSPENDED
        if not record or start.get("phase", TRAINING) != TRAINING:
            return LifecycleState.STARTING
        began = time_of(own[0]) if own else None
        return LifecycleState.SILENT if began and _is_silent(folder, began.timestamp()) else LifecycleState.TRAINING
    has_begun = bool(record) and ("time" in start or bool(events))  # early versions recorded no start
    return end if has_begun else LifecycleState.NOT_BEGUN


def events_of_last_start(start: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return those of ``events`` from the last ``RunStarted`` on; none if that is of an earlier start than ``start``.

    ``start`` is that of ``run.json``; it is empty in a run of an early version.
    """
    begin = next((at for at in reversed(range(len(events))) if events[at].get("event") == "RunStarted"), None)
    if begin is None:
        return ()
    if "time" in start:
        began = time_of(events[begin])
        if began is None or began < datetime.fromisoformat(str(start["time"])):
            return ()
    return events[begin:]


def last_step(layout: RunLayout, metrics: Iterable[Mapping[str, Any]]) -> int:
    """Return the last step of a run, 0 before the first; ``metrics`` are all or the newest lines of ``metrics.jsonl``.

    It is that of the newest checkpoint if no metrics are recorded, as a host may have it.
    """
    steps = (record.get("step") for record in metrics if "loss" in record)
    return max([layout.newest_durable_step(), *(step for step in steps if type(step) is int)])


def refusal_of(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Return the error that refused the first start of the run in ``folder`` before it trained, None for other runs.

    ``record`` is the content of ``run.json``. Such a folder holds no run: nothing in it binds a later start.
    """
    start = record.get("start", {})
    error = str(start.get("error", ""))
    is_refusal = start.get("is_first") is True and error.startswith(_REFUSALS)
    return error.partition(": ")[2] if is_refusal and _status_of_holder(folder) is None else None


def time_of(event: Mapping[str, Any]) -> datetime | None:
    """Return the time of ``event``, None if it has no time in the form of a run's events."""
    try:
        found = datetime.fromisoformat(str(event.get("time")))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def seconds_of_silence(folder: Path) -> float | None:
    """Return the seconds since the run in ``folder`` has written anything, None if nothing is there."""
    layout = RunLayout(folder)
    written = max(_times_of(layout.metrics, layout.events, layout.record, *_heartbeats(folder)), default=None)
    return None if written is None else max(0.0, time.time() - written)


def _end_of(events: Sequence[Mapping[str, Any]]) -> LifecycleState:
    end = RunEnd()
    for event in events:
        end.add_record(event)
    return end.state


def _status_of_holder(folder: Path) -> str | None:
    """Return the status of the process that took the lock of the run, None if it has ended.

    "" if it is on another machine, or of another user, and the status is not known.
    """
    holder = holder_of(folder)
    if holder is None or holder.host != socket.gethostname():
        return "" if is_locked(folder) else None
    try:
        process = psutil.Process(holder.pid)
        status = process.status()
        is_alive = process.create_time() <= holder.since + _CLOCK_SLACK_SECONDS and status != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return ""
    return status if is_alive else None


def _is_silent(folder: Path, began: float) -> bool:
    """Return whether all heartbeats of the start that ``began`` then are old; without a watchdog it sends none."""
    last = max(_times_of(*_heartbeats(folder)), default=0.0)
    return began - _SILENT_SECONDS < last < time.time() - _SILENT_SECONDS


def _heartbeats(folder: Path) -> Sequence[Path]:
    return list(RunLayout(folder).heartbeats.glob("rank*.json"))


def _times_of(*paths: Path) -> Iterator[float]:
    for path in paths:
        with suppress(OSError):  # it was removed just now
            yield path.stat().st_mtime
