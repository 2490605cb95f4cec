"""Heartbeats of ranks, and the timeouts after which a run counts as hung."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Activity(StrEnum):
    """The current activity of the training thread."""

    STEP = "taking a step"
    DATA = "waiting for data"
    EVALUATION = "evaluating"
    CHECKPOINT = "saving or restoring"
    COMPILATION = "compiling"
    ARCHIVE = "waiting for the archive"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A periodic report of a rank, with a growing ``number``: its last step, its activity and its recent step times.

    ``step_seconds`` and ``data_seconds`` are medians, in seconds, of the time in the engine and of the wait for the
    batch.
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
        """Return the heartbeat as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the heartbeat that ``to_json`` described."""
        return cls(**{**record, "doing": Activity(record["doing"])})


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The seconds for which the training thread may make no progress.

    A step may take ``factor`` times the median of the latest steps, and at least ``min_seconds``; any other activity,
    and the first step of a start, may take ``slow_seconds``. Waiting for the archive has no timeout.
    """

    min_seconds: float = 60.0
    factor: float = 20.0
    slow_seconds: float = 1800.0

    def limit(self, doing: Activity, steps: Sequence[float]) -> float:
        """Return the timeout in seconds for the activity ``doing``, given the seconds of the latest steps."""
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
        """Return a sentence on why the run hangs if ``own`` rank made no progress for too long, else None.

        ``silent`` are the ranks that send no heartbeats any more, ``others`` the other ranks that do: while one of
        them is busy with a slow activity, this rank may be waiting for it.
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
