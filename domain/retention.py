"""Which checkpoints have served their time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Retention:
    """Keeps the ``newest`` checkpoints, those at multiples of ``every`` steps, and the ``best`` by evaluation loss.

    ``every`` and ``best`` keep none more if they are 0. Raises ``ConfigurationError`` if the newest checkpoint would
    not be among those kept, or a number is negative.
    """

    newest: int
    every: int = 0
    best: int = 0

    def __post_init__(self) -> None:
        if self.newest < 1:
            msg = f"state_store.keep is {self.newest}, and a run needs a checkpoint to go on from: keep at least 1"
            raise ConfigurationError(msg)
        if self.every < 0 or self.best < 0:
            msg = "state_store.keep_every and keep_best count steps and checkpoints: give 0 or more"
            raise ConfigurationError(msg)

    def doomed(self, stored: Mapping[int, float | None], *, saved: int) -> Sequence[int]:
        """Return the steps to delete, lowest first, never ``saved``, the one that was just made durable.

        ``stored`` has the evaluation loss of each stored step, None where none was measured; of equal losses the
        later one is better.
        """
        kept = {saved, *sorted(stored)[-self.newest :]}
        if self.every:
            kept.update(step for step in stored if step % self.every == 0)
        measured = [(loss, -step) for step, loss in stored.items() if loss is not None]
        kept.update(-step for _, step in sorted(measured)[: self.best])
        return [step for step in sorted(stored) if step not in kept]
