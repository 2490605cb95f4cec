"""The contents of a run folder for pages and reports, read while another process may write it.

A ``RunView`` only reads, and takes no lock that a run could wait for. Call ``refresh`` for what is new, or ``read_all``
once for a report; then:

    view.summary()                         state, step, figures, time left, goodput: plain data for JSON
    view.curves(["loss"], width=800)       curves by name, with few points that still show each peak
    view.notes                             all events as sentences, the oldest first; marks on the curves
    view.checkpoints()                     the checkpoints with their states
    view.settings()                        each setting with its value and its origin
    view.samples()                         generated texts, the newest first
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.application.handlers.control_files import SAVE, STOP
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import budget_in, flatten, no_run, read_whole_record
from holdfast.bootstrap.run_reading.formatting import rough_duration, shown_rate
from holdfast.bootstrap.run_reading.growing_file import GrowingRecords
from holdfast.bootstrap.run_reading.metric_table import MetricsReader
from holdfast.bootstrap.run_reading.run_events import (
    EventNotes,
    RunNote,
    note_of_restart,
    notes_of_history,
    notes_of_start,
)
from holdfast.bootstrap.run_reading.run_state import CheckpointList, state_of
from holdfast.domain.errors import StateError
from holdfast.domain.fault_tolerance.goodput import TimeAccount, TimeSample
from holdfast.domain.run_end import LifecycleState
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.run_reading.metric_table import Curve, MetricTable
    from holdfast.domain.fault_tolerance.goodput import Goodput

_RECENT_STEPS = 100
_MOST_NOTES = 20_000
_LOST = (0, 0)
"""In place of the time and the number of a file that is lost: a checkpoint may have a copy."""
_MOST_EVENTS = 100_000
_MOST_SAMPLES = 200


@final
class RunView:
    """A run in ``folder``; ``name`` is what it is called, by default the name of the folder.

    Methods may be called from any thread. ``version`` grows with each change that ``refresh`` finds. Raises
    ``StateError`` if the folder is none of a run.
    """

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        self._layout = layout = RunLayout(folder)
        if not layout.holds_run and not layout.is_unwritten:
            raise StateError(no_run(folder))
        self.folder = folder
        self.name = name or folder.resolve().name
        self.version = 0
        self._lock = threading.RLock()
        self._metrics = MetricsReader(layout.metrics)
        self._events = GrowingRecords(layout.events, _MOST_EVENTS)
        self._event_notes = EventNotes(self._events)
        self._restarts = GrowingRecords(layout.restarts, _MOST_EVENTS)
        self._samples = GrowingRecords(layout.samples, _MOST_SAMPLES * 50)
        self._time = TimeRecord(layout.goodput)
        self._checkpoints = CheckpointList(folder)
        self._record: Mapping[str, Any] = {}
        self._record_stamp: tuple[int, int] | None = None
        self._notes: list[RunNote] = []
        self._notes_version, self._state = 0, LifecycleState.STARTING
        self._problem: str | None = None  # of the record
        self._fault: str | None = None  # of the last refresh

    def refresh(self, most: int = 8 << 20) -> bool:
        """Read what is new, of the metrics about ``most`` bytes; return whether anything has changed.

        An error of the file system is a problem in ``summary``, until a later call can read the folder again.
        """
        with self._lock:
            problem, self._fault = self._fault, None
            try:
                changed = self._read_new(most)
            except Exception as error:  # noqa: BLE001  such as a file server that is away; or files of another program
                changed, self._fault = False, f"{self.folder} cannot be read: {describe(error)}"
                self._record_stamp = None  # all notes are collected again with the record
            changed = changed or problem != self._fault
            self.version += changed
            return changed

    def _read_new(self, most: int) -> bool:
        changed = [self._read_record(), self._metrics.poll(most), self._time.poll(), self._samples.poll()]
        changed += [self._restarts.poll(), self._events.poll(), self._checkpoints.has_changed()]
        if changed[0] or any(changed[-3:]):
            self._notes = self._all_notes()
            self._notes_version += 1
        state = state_of(self.folder, self._record, self._events.records)
        changed += [state != self._state, self._metrics.overview is not None]
        self._state = state
        return any(changed)

    def read_all(self) -> RunView:
        """Read everything that is there now; return this view. Raises ``StateError`` if the folder cannot be read."""
        while self.refresh() and self._metrics.share < 1.0:
            pass  # an incomplete last line stays unread
        if self._fault is not None:
            raise StateError(self._fault)
        return self

    @property
    def notes(self) -> Sequence[RunNote]:
        """Return what happened, the oldest first."""
        return self._notes

    @property
    def record(self) -> Mapping[str, Any]:
        """Return the contents of ``run.json``; empty if it is not written yet."""
        return self._record

    @property
    def generation(self) -> int:
        """Return a number that grows whenever recorded steps were removed."""
        return self._metrics.generation

    @property
    def metrics(self) -> Sequence[str]:
        """Return the names of all recorded metrics."""
        with self._lock:
            return sorted({*self._steps.names, *self._metrics.evaluations.names} - {"step"})

    def curves(
        self,
        names: Sequence[str],
        first: int | None = None,
        last: int | None = None,
        *,
        width: int | None = None,
        bucket: int | None = None,
    ) -> dict[str, Curve]:
        """Return metrics by name; the arguments are those of ``MetricTable.curves``. Evaluations keep all points."""
        with self._lock:
            known = set(self._steps.names)
            of_steps = [name for name in names if name in known]
            curves = self._steps.curves(of_steps, first, last, width=width, bucket=bucket)
            others = [name for name in names if name not in known]
            return curves | self._metrics.evaluations.curves(others, first, last)

    def bucket(self, first: int | None, last: int | None, width: int) -> int:
        """Return the number of steps that a point of a curve of ``width`` points stands for; 1 for a sample."""
        with self._lock:
            return 1 if self._metrics.overview is not None else self._steps.bucket(first, last, width)

    def rejections(self) -> list[tuple[int, int]]:
        """Return the steps up to which more records were rejected, each with the number of them."""
        with self._lock:
            return self._metrics.steps.rises("rejected")

    def summary(self) -> dict[str, Any]:
        """Return the state of the run and its newest figures as plain data."""
        with self._lock:
            return {
                "name": self.name,
                "path": str(self.folder),
                "id": self._record.get("id"),
                "state": self._state.value,
                "problem": self._fault or self._problem,
                "phase": self._record.get("start", {}).get("phase"),
                "created": self._record.get("created"),
                "data": [entry["id"] for entry in versions_read(self._record)],
                "asked": [name for name in (SAVE, STOP) if (self.folder / name).exists()],
                "last_sign": self._last_sign(),
                **self._progress(),
                **self._figures(),
                **self._contents(),
            }

    def _progress(self) -> dict[str, Any]:
        budget = budget_in(self._record)
        step = max(self._steps.last_step or 0, self._layout.newest_durable_step())  # a host may record no metrics
        tokens, recent = self._number("tokens"), self._recent("tokens_per_second")
        num_tokens = None if tokens is None else int(tokens)
        left = time_left(budget, step, num_tokens, self._time.steps_per_second(), recent)
        is_training = self._state is LifecycleState.TRAINING
        return {
            "step": step,
            "first_step": self._steps.first_step,
            "tokens": num_tokens,
            "budget": {key: budget.get(key) for key in ("steps", "tokens")},
            "share": share_of(budget, step, num_tokens),
            "tokens_per_second": recent,
            "time_left": {"seconds": left.seconds, "base": left.base} if left is not None and is_training else None,
        }

    def _figures(self) -> dict[str, Any]:
        starts = [event for event in self._events.records if event.get("event") == "RunStarted"]
        start = starts[-1] if starts else {}
        goodput = self._time.goodput
        evaluations = self._metrics.evaluations.curves(["eval_loss"]).get("eval_loss")
        losses = np.zeros(0) if evaluations is None else evaluations.value[np.isfinite(evaluations.value)]
        return {
            "loss": self._loss(),
            "eval_loss": self._evaluation_loss(),
            "best_eval_loss": float(np.min(losses)) if len(losses) else None,
            "best": self.best_evaluation(),
            "memory_bytes": self._number("memory_bytes"),
            **{name: start.get(name) for name in ("memory_limit", "device", "parameters", "ranks")},
            "goodput": {
                "share": goodput.share,
                "seconds": {str(kind): seconds for kind, seconds in goodput.seconds.items()},
                "starts": goodput.starts,
            },
        }

    def _contents(self) -> dict[str, Any]:
        """Return how much of each kind there is, by which a page knows what to fetch."""
        return {
            "metrics": self.metrics,
            "records": self._metrics.steps.num_rows + self._metrics.evaluations.num_rows,
            "generation": self.generation,
            "loaded": self._metrics.share,
            "notes": self._notes_version,
            "rejected": self._number("rejected") or 0.0,
            "samples": len(self._samples.records),
            "checkpoints": self._checkpoints.version,
        }

    def best_evaluation(self) -> dict[str, Any] | None:
        """Return metric, value and step of the best evaluation by the metric of early stopping, else by loss."""
        chosen = self._record.get("settings", {}).get("recovery", {}).get("early_stopping", {})
        metric = str(chosen.get("metric")) if chosen.get("patience") else "eval_loss"
        curve = self._metrics.evaluations.curves([metric]).get(metric)
        finite = np.zeros(0, bool) if curve is None else np.isfinite(curve.value)
        if curve is None or not finite.any():
            return None
        signed = np.where(finite, -curve.value if is_higher_better(metric) else curve.value, np.inf)
        place = int(np.argmin(signed))
        return {"metric": metric, "value": float(curve.value[place]), "step": int(curve.step[place])}

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints, the newest first: step, time, bytes, reason, state, archived, pinned and losses."""
        with self._lock:
            checkpoints = self._checkpoints.entries(self._events.records)
            for entry in checkpoints:
                entry["loss"] = self._value_at("loss", entry["step"], self._metrics.steps)
                entry["eval_loss"] = self._value_at("eval_loss", entry["step"], self._metrics.evaluations)
            return checkpoints

    def settings(self) -> list[dict[str, Any]]:
        """Return each setting: ``name``, ``value``, ``origin``, and for ``auto`` the ``chosen`` value and ``reason``.

        The origin is ``default``, a file, ``environment NAME`` or ``command line``; None for a run of an earlier
        version.
        """
        origins = written if isinstance(written := self._record.get("origins"), dict) else None
        auto = self._record.get("auto", {})
        entries = []
        for name, value in flatten(self._record.get("settings", {})).items():
            origin = None if origins is None else _origin(name, origins)
            entry = {"name": name, "value": value, "origin": origin, "chosen": None, "reason": None}
            if name in auto:
                entry |= {"chosen": auto[name].get("value"), "reason": auto[name].get("reason")}
            entries.append(entry)
        return entries

    def samples(self, most: int = _MOST_SAMPLES) -> list[dict[str, Any]]:
        """Return up to ``most`` generated texts as they were recorded, the newest first."""
        with self._lock:
            return self._samples.records[: -most - 1 : -1]

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for each in (self._metrics, self._events, self._restarts, self._samples, self._time):
                each.close()

    @property
    def _steps(self) -> MetricTable:
        return self._metrics.overview or self._metrics.steps

    def _read_record(self) -> bool:
        """Read ``run.json`` if it was replaced; return whether it was."""
        stamp = None
        with suppress(OSError):
            status = os.stat(self._layout.record)  # noqa: PTH116  its numbers only
            stamp = (status.st_mtime_ns, status.st_ino)
        if stamp is None and self._layout.durable_steps():
            stamp = _LOST
        if stamp == self._record_stamp:
            return False
        before = self._problem
        try:
            self._record, self._problem = (read_whole_record(self.folder) if stamp else {}), None
            if stamp is None and self._record_stamp is not None:
                self._problem = f"{self.folder} was removed or moved"
        except StateError as error:  # the next call reads it again
            self._problem = str(error)
            return self._problem != before
        self._record_stamp = stamp
        return True

    def _all_notes(self) -> list[RunNote]:
        notes = [*self._event_notes.all(), *notes_of_history(self._record)]
        notes += [note_of_restart(record) for record in self._restarts.records]
        notes += notes_of_start(self._record.get("start", {}))
        notes.sort(key=lambda note: note.time or "")
        return notes[-_MOST_NOTES:]

    def _number(self, name: str) -> float | None:
        table = self._steps if name in self._steps.names else self._metrics.evaluations
        latest = table.latest(name)
        return None if latest is None else _finite(latest[1])

    def _loss(self) -> float | None:
        """Return the loss of the last step; None if it is no finite number."""
        last = self._steps.last_step
        return None if last is None else self._value_at("loss", last, self._steps)

    def _evaluation_loss(self) -> float | None:
        """Return the loss of the last evaluation; None if it is no finite number."""
        table = self._metrics.evaluations
        latest = table.latest("tokens") or table.latest("eval_loss")  # results of suites have no tokens
        return None if latest is None else self._value_at("eval_loss", latest[0], table)

    def _recent(self, name: str) -> float | None:
        """Return the mean of a rate over the time of the newest steps."""
        last = self._steps.last_step
        if last is None:
            return None
        curve = self._steps.curves([name], last - _RECENT_STEPS + 1).get(name)
        if curve is None or not (rates := curve.value[curve.value > 0]).size:
            return None
        return _finite(rates.size / float((1.0 / rates).sum()))

    def _value_at(self, name: str, step: int, table: MetricTable) -> float | None:
        curve = table.curves([name], step, step).get(name)
        return None if curve is None or not len(curve.value) else _finite(float(curve.value[-1]))

    def _last_sign(self) -> str | None:
        with suppress(OSError, OverflowError, ValueError):  # a time in no calendar
            written = self._layout.metrics.stat().st_mtime
            return datetime.fromtimestamp(max(written, self._time.last_time or 0.0), UTC).isoformat(timespec="seconds")
        return None


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _origin(name: str, origins: Mapping[str, str]) -> str:
    """Return the recorded origin of a setting, or of the value that it is a part of."""
    parts = name.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((origins[each] for each in names if each in origins), "default")


_WINDOW_SECONDS = 600.0
_SHORTEST_SECONDS = 5.0


@final
@dataclass(frozen=True, slots=True)
class TimeLeft:
    """An estimate of the seconds until the budget is spent; ``base`` is a phrase that says what it rests on."""

    seconds: float
    base: str


@final
class TimeRecord:
    """The contents of ``goodput.jsonl`` at ``path``: the use of time over all starts, and the recent rate."""

    def __init__(self, path: Path) -> None:
        self._records = GrowingRecords(path)
        self._generation = 0
        self._num_added = 0
        self._account = TimeAccount()
        self._marks: list[TimeSample] = []

    def poll(self) -> bool:
        """Read new samples; return whether there were any."""
        if not self._records.poll():
            return False
        if self._records.generation != self._generation:
            self._generation, self._num_added = self._records.generation, 0
            self._account, self._marks = TimeAccount(), []
        for record in self._records.records[self._num_added :]:
            try:
                mark = TimeSample.from_json(record)
            except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
                continue  # a line of another version
            self._account.add(mark)
            self._marks.append(mark)
        self._num_added = len(self._records.records)
        return True

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    @property
    def goodput(self) -> Goodput:
        """Return the use of time over all starts so far."""
        return self._account.goodput

    @property
    def last_time(self) -> float | None:
        """Return the time of the last sample in Unix seconds, None without one."""
        return self._marks[-1].time if self._marks else None

    def steps_per_second(self) -> tuple[float, float] | None:
        """Return the rate of the current start over up to ten minutes, with the seconds that it was measured over.

        None until five seconds of steps are recorded. Saves, evaluations and waits are part of the time.
        """
        if not self._marks:
            return None
        last = self._marks[-1]
        first = last
        for mark in reversed(self._marks):
            if mark.began != last.began or mark.step > first.step or last.time - mark.time > _WINDOW_SECONDS:
                break  # another start, or a roll-back
            first = mark
        seconds, steps = last.time - first.time, last.step - first.step
        return (steps / seconds, seconds) if steps > 0 and seconds >= _SHORTEST_SECONDS else None


def time_left(
    budget: Mapping[str, Any],
    step: int,
    tokens: int | None,
    rate: tuple[float, float] | None,
    tokens_per_second: float | None,
) -> TimeLeft | None:
    """Return the time until ``step`` and ``tokens`` reach the ``budget``; None if nothing tells.

    ``rate`` is that of ``TimeRecord.steps_per_second``. Without it ``tokens_per_second``, the mean of recent steps, is
    used, which leaves out saves and evaluations.
    """
    tokens_a_step = tokens / step if tokens and step else None
    left = []  # in steps
    if isinstance(budget.get("steps"), int):
        left.append(max(0.0, budget["steps"] - step))
    if isinstance(budget.get("tokens"), int) and tokens is not None and tokens_a_step:
        left.append(max(0.0, (budget["tokens"] - tokens) / tokens_a_step))
    if not left:
        return None
    if rate is not None:
        per_second, seconds = rate
        base = (
            f"{shown_rate(per_second)} steps/s over the last {rough_duration(seconds)}, saves and evaluations included"
        )
        return TimeLeft(min(left) / per_second, base)
    if tokens_per_second and tokens_a_step:
        base = f"{tokens_per_second:,.0f} tokens/s in recent steps, without saves and evaluations"
        return TimeLeft(min(left) * tokens_a_step / tokens_per_second, base)
    return None


def share_of(budget: Mapping[str, Any], step: int, tokens: int | None) -> float | None:
    """Return the share of the budget that is spent; None without a budget."""
    shares = []
    if isinstance(budget.get("steps"), int) and budget["steps"]:
        shares.append(step / budget["steps"])
    if isinstance(budget.get("tokens"), int) and budget["tokens"] and tokens is not None:
        shares.append(tokens / budget["tokens"])
    return min(1.0, max(shares)) if shares else None
