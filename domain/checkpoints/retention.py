"""The retention policy of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """The facts about a stored checkpoint that retention depends on.

    ``evaluation_loss`` is None if none was measured; ``saved_at`` is the time of capture in seconds since 1970; a
    pinned checkpoint is never deleted.
    """

    evaluation_loss: float | None = None
    saved_at: float = 0.0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class RollBackFloor:
    """The checkpoints that a roll-back may need: the newest one up to ``step``, and later ones.

    Only multiples of ``every`` count; if ``every`` is 0, all steps count. ``best`` is the step that is best by early
    stopping, whose checkpoint is needed too; None without early stopping.
    """

    step: int
    every: int
    best: int | None = None

    def among(self, stored: Iterable[int]) -> Collection[int]:
        """Return the steps in ``stored`` that a roll-back or early stopping may need."""
        able = [step for step in stored if not self.every or step % self.every == 0]
        first = max((step for step in able if step <= self.step), default=self.step)
        return [*(step for step in able if step >= first), *(step for step in stored if step == self.best)]


@dataclass(frozen=True, slots=True)
class Retention:
    """Retains the newest ``keep`` checkpoints, milestones, the ``best`` by evaluation loss, and those above ``floor``.

    Milestones are the checkpoints at multiples of ``every`` steps, and the first one in each window of ``hours`` hours.
    A value of 0 disables the rule, except for ``keep``. Raises ``ConfigurationError`` if the newest checkpoint would
    not be retained, or a number is negative.
    """

    keep: int
    every: int = 0
    best: int = 0
    hours: float = 0.0
    floor: RollBackFloor | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            msg = f"state_store.keep is {self.keep}, and a run needs a checkpoint to continue from: keep at least 1"
            raise ConfigurationError(msg)
        if self.every < 0 or self.best < 0 or self.hours < 0:
            msg = "state_store.keep_every, keep_best and keep_hours count steps, checkpoints and hours: give 0 or more"
            raise ConfigurationError(msg)

    def protecting(self, floor: RollBackFloor) -> Self:
        """Return the same rules with ``floor``."""
        return replace(self, floor=floor)

    def expired(self, stored: Mapping[int, StoredCheckpoint], *, saved: int) -> Sequence[int]:
        """Return the steps to delete, lowest first; never ``saved``, which has just been made durable.

        ``stored`` is by step; of equal losses the later step is better.
        """
        kept = {saved, *sorted(stored)[-self.keep :], *self.retained_forever(stored)}
        return [step for step in sorted(stored) if step not in kept]

    def retained_forever(self, stored: Mapping[int, StoredCheckpoint]) -> Collection[int]:
        """Return the steps retained for another reason than their age: milestones, best, floor and pinned."""
        losses = {step: info.evaluation_loss for step, info in stored.items()}
        measured = [(loss, -step) for step, loss in losses.items() if loss is not None]
        best = [-step for _, step in sorted(measured)[: self.best]]
        pinned = [step for step, info in stored.items() if info.is_pinned]
        floor = self.floor.among(stored) if self.floor else ()
        return {*self._milestones(stored), *best, *floor, *pinned}

    def _milestones(self, stored: Mapping[int, StoredCheckpoint]) -> Sequence[int]:
        by_steps = [step for step in stored if self.every and step % self.every == 0]
        if not self.hours:
            return by_steps
        windows: dict[float, int] = {}
        for step in sorted(stored):
            windows.setdefault(stored[step].saved_at // (self.hours * _SECONDS_AN_HOUR), step)
        return [*by_steps, *windows.values()]


class Role(StrEnum):
    """A separate right: reading does not imply writing, and writing does not imply deleting."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    KEY = "key"
    """Use of the key that encrypted checkpoints are wrapped by."""
