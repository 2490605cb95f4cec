"""The progress of a run towards its budget, its rate, and how its time was spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.run_reading.formatting import rough_duration, shown_rate
from holdfast.bootstrap.run_reading.growing_file import GrowingRecords
from holdfast.domain.fault_tolerance.goodput import TimeAccount, TimeSample

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.domain.fault_tolerance.goodput import Goodput

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
