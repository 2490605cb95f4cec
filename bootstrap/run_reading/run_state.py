"""The state of a run, found without taking its lock."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, final

import psutil

from holdfast.adapters.state_store.checkpoint_inspection import CheckpointInspector
from holdfast.bootstrap.run_folder.best_checkpoint import best_step
from holdfast.bootstrap.run_folder.folder import TRAINING
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.run_lock import holder_of, is_locked
from holdfast.domain.errors import StateError
from holdfast.domain.run_end import LifecycleState, RunEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.checkpoint_inspection import CheckpointReport

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
        time = datetime.fromisoformat(str(event.get("time")))
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


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


_LOADED = ("RunStarted", "RolledBack")


@final
class CheckpointList:
    """The checkpoints in the run ``folder``. ``version`` grows with each change that ``has_changed`` finds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = [RunLayout(folder).checkpoints, folder / "pins", folder / "quarantine", folder / "superseded"]
        self._stamp: list[int] | None = None
        self.version = 0

    def has_changed(self) -> bool:
        """Return whether a checkpoint, a pin or the quarantine has changed since the last call."""
        stamp = [_time_of(path) for path in self._places]
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.version += 1
        return True

    def entries(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the checkpoints, the newest first.

        ``state`` is ``written`` if all files are there in their sizes, ``verified`` if a start or a roll-back has also
        read it without a difference since it was written, ``saving``, or the defect. ``is_best`` marks the one that
        ``--best`` selects, ``is_on_disk`` is false for copies that are only in the archive.
        """
        try:
            store = CheckpointInspector(hashing=False, count=lambda _: None).store(self._folder)
        except (OSError, StateError):
            return []
        history = _History.of(events)
        best = best_among(store.checkpoints)
        entries = []
        for report in store.checkpoints:
            manifest, step = report.manifest, int(report.name.partition("-")[2])
            written = "verified" if history.is_verified(step) else "written"
            entries.append(
                {
                    "step": step,
                    "state": report.problems[0].flaw if report.problems else written,
                    "problem": report.problems[0].reason if report.problems else None,
                    "saved": report.saved.isoformat(timespec="seconds") if report.saved else None,
                    "bytes": manifest.num_bytes if manifest else None,
                    "reason": manifest.snapshot.reason if manifest else None,
                    "tokens": manifest.progress.tokens if manifest else None,
                    "is_archived": step in history.archived,
                    "is_best": step == best,
                    "is_pinned": step in store.pinned,
                    "is_encrypted": bool(manifest and manifest.wrapped_key),
                    "is_on_disk": True,
                }
            )
        there = {entry["step"] for entry in entries}
        entries += [_elsewhere(step, "archived") for step in history.archived - there]
        if history.saving is not None and history.saving not in there:
            entries.append(_elsewhere(history.saving, "saving"))
        return sorted(entries, key=lambda entry: entry["step"], reverse=True)


def best_among(reports: Iterable[CheckpointReport]) -> int | None:
    """Return the step of the checkpoint that ``--best`` selects, None if none was evaluated."""
    whole = [report for report in reports if not report.problems]
    return best_step([report.manifest.info(report.name) for report in whole if report.manifest is not None])


@final
class _History:
    """The steps of checkpoints by what the events say of them."""

    def __init__(self) -> None:
        self.archived: set[int] = set()
        self.loaded: set[int] = set()
        self.saving: int | None = None

    @classmethod
    def of(cls, events: Sequence[Mapping[str, Any]]) -> _History:
        found = cls()
        for event in events:
            if isinstance(event.get("step"), int):
                found.add(str(event.get("event")), int(event["step"]), event)
        return found

    def add(self, name: str, step: int, event: Mapping[str, Any]) -> None:
        if name in _LOADED:
            self.loaded |= {step} if step else set()
            if name == "RolledBack":  # copies of later steps are deleted
                self.archived = {each for each in self.archived if each <= step}
            self.saving = None
        elif name == "CheckpointStarted":
            self.saving = step
        elif name in ("CheckpointSaved", "CheckpointFailed"):
            self.saving = None
            self.loaded.discard(step)
        elif name == "CheckpointArchived" or (name == "CheckpointMoved" and event.get("target") == "archive"):
            self.archived.add(step)
            deleted = event.get("deleted")
            self.archived -= {each for each in deleted if isinstance(each, int)} if isinstance(deleted, list) else set()
        elif name == "CheckpointMoved" and event.get("source") == "archive":
            self.archived.discard(step)
        if name in ("RunFinished", "RunFailed"):
            self.saving = None

    def is_verified(self, step: int) -> bool:
        return step in self.loaded


def _elsewhere(step: int, state: str) -> dict[str, Any]:
    """Return a checkpoint that is not on the disk: in the archive alone, or not written yet."""
    empty = dict.fromkeys(("problem", "saved", "bytes", "reason", "tokens"))
    nothing = dict.fromkeys(("is_best", "is_pinned", "is_encrypted", "is_on_disk"), False)
    return {"step": step, "state": state, **empty, "is_archived": state == "archived", **nothing}


def _time_of(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
