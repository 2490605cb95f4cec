"""Heartbeats of ranks, and the timeouts after which a run counts as hung."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Activity(StrEnum):
    """What the training thread is at."""

    STEP = "taking a step"
    DATA = "waiting for data"
    EVALUATION = "evaluating"
    CHECKPOINT = "saving or restoring"
    COMPILATION = "compiling"
    ARCHIVE = "waiting for the archive"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a rank tells of itself, under a growing ``number``: its last step, what it does, and its recent steps.

    ``step_seconds`` and ``data_seconds`` are medians of the engine's time and the wait for the batch.
    """

    rank: int
    number: int
    host: str
    pid: int
    step: int
    doing: Activity
    step_seconds: float = 0.0
    data_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the beat as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the beat that ``to_json`` described."""
        return cls(**{**record, "doing": Activity(record["doing"])})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the training thread may show no sign of life, in seconds.

    A step may take ``factor`` times the median of the latest ones, and ``min_seconds`` at least; whatever else it does,
    and the first step of a start, ``slow_seconds``. The archive is waited for as long as it takes.
    """

    min_seconds: float = 60.0
    factor: float = 20.0
    slow_seconds: float = 1800.0

    def limit(self, doing: Activity, steps: Sequence[float]) -> float:
        """Return it for a thread at ``doing`` whose latest steps took so many seconds."""
        if doing is Activity.ARCHIVE:
            return float("inf")
        if doing is not Activity.STEP or not steps:
            return max(self.min_seconds, self.slow_seconds)
        return max(self.min_seconds, self.factor * median(steps))

    def hang_reason(
        self,
        own: Heartbeat,
        waited: float,
        steps: Sequence[float],
        *,
        silent: Sequence[Heartbeat],
        others: Sequence[Heartbeat],
    ) -> str | None:
        """Return in words why the run hangs if ``own`` rank has shown no sign of life for too long, else None.

        ``silent`` are ranks that tell nothing any more, ``others`` those that do: while one of these does something
        slow, the rest may well wait for it.
        """
        limit = self.min_seconds if silent else max(self.limit(beat.doing, steps) for beat in (own, *others))
        if waited <= limit:
            return None
        since = f"rank {own.rank} has made no progress for {waited:.0f} s at step {own.step + 1} ({own.doing})"
        if silent:
            return f"{since}: {', '.join(map(_named, silent))} sends no heartbeats any more (stopped or dead)"
        last = min((own, *others), key=lambda beat: beat.step)
        if last.step < own.step:
            return f"{since}: {_named(last)} is behind, at step {last.step + 1} ({last.doing})"
        return f"{since}; the limit is {limit:.0f} s"


def _named(beat: Heartbeat) -> str:
    return f"rank {beat.rank} (process {beat.pid} on {beat.host})"
