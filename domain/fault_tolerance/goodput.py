"""The goodput of a run: how its time was spent, over all its starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, final

if TYPE_CHECKING:
    from collections.abc import Mapping


class TimeCategory(StrEnum):
    """The categories of a run's time."""

    COMPUTE = "compute"
    START_UP = "start_up"
    DATA = "data"
    SAVE = "save"
    EVALUATION = "evaluation"
    RECOVERY = "recovery"
    RESTART = "restart"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TimeSample:
    """The seconds by category that a start had spent by ``time`` (Unix seconds), with ``step`` as its last step.

    ``began`` identifies the start. ``is_planned_end`` says that the start ended as intended, so that the time until the
    next start is not a loss.
    """

    began: float
    time: float
    step: int
    seconds: Mapping[TimeCategory, float]
    is_planned_end: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON."""
        seconds = {str(kind): round(value, 3) for kind, value in self.seconds.items()}
        end = {"planned_end": True} if self.is_planned_end else {}
        return {"began": self.began, "time": self.time, "step": self.step, "seconds": seconds, **end}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the sample that ``to_json`` described; raises ``ValueError`` for a number that is not finite."""
        seconds = {TimeCategory(kind): float(value) for kind, value in record["seconds"].items()}
        began, time, step = float(record["began"]), float(record["time"]), record["step"]
        if not all(map(math.isfinite, (began, time, step, *seconds.values()))):
            msg = "a number of the sample is not finite"
            raise ValueError(msg)
        return cls(began, time, int(step), seconds, record.get("planned_end") is True)


@dataclass(frozen=True, slots=True)
class Goodput:
    """The seconds of a run since its first start, by category; ``COMPUTE`` holds only steps that count.

    The time between a planned end and the next start is excluded.
    """

    seconds: Mapping[TimeCategory, float]
    starts: int

    @property
    def wall_seconds(self) -> float:
        """Return the seconds since the first start, less those between a planned end and the next start."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Return the compute of steps that count, as a fraction of the time since the first start."""
        return self.seconds[TimeCategory.COMPUTE] / self.wall_seconds if self.wall_seconds > 0 else 0.0


@final
class TimeAccount:
    """Adds up marks, in the order in which they were made.

    The time between two starts is ``RESTART``, unless the first ended as planned. Where the step decreases, by a new
    start or a roll-back, the compute of the later steps becomes ``LOST``, as they are taken again. Between two marks
    steps count as equally long.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(TimeCategory, 0.0)
        self._taken: list[tuple[int, int, float]] = []  # from a step up to another: seconds of compute
        self._last: TimeSample | None = None
        self._starts = 0

    def add(self, mark: TimeSample) -> None:
        """Add the time since the previous mark."""
        last = self._last
        known: Mapping[TimeCategory, float] = {}
        step = mark.step if last is None else last.step
        if last is not None and last.began == mark.began:
            known = last.seconds
        else:
            self._starts += 1
            if last is not None and not last.is_planned_end:
                self._seconds[TimeCategory.RESTART] += max(0.0, mark.began - last.time)
        spent = {kind: mark.seconds.get(kind, 0.0) - known.get(kind, 0.0) for kind in TimeCategory}
        for kind, seconds in spent.items():
            self._seconds[kind] += seconds
        self._taken.append((min(step, mark.step), mark.step, spent[TimeCategory.COMPUTE]))
        if mark.step < step:
            self._lose_behind(mark.step)
        self._last = mark

    @property
    def goodput(self) -> Goodput:
        """Return the totals up to the latest sample."""
        return Goodput(dict(self._seconds), self._starts)

    def _lose_behind(self, step: int) -> None:
        kept, lost = [], 0.0
        for first, end, seconds in self._taken:
            share = min(1.0, max(0.0, (step - first) / (end - first))) if end > first else float(end <= step)
            kept.append((min(first, step), min(end, step), seconds * share))
            lost += seconds * (1.0 - share)
        self._taken = kept
        lost = max(0.0, min(lost, self._seconds[TimeCategory.COMPUTE]))
        self._seconds[TimeCategory.COMPUTE] -= lost
        self._seconds[TimeCategory.LOST] += lost
