"""Which checkpoints have served their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

from domain.errors import ConfigurationError


def check_keep(keep: int) -> int:
    """Return ``keep``, or raise ``ConfigurationError`` if the newest checkpoint would not be among those kept."""
    if keep < 1:
        msg = f"state_store.keep is {keep}, and a run needs a checkpoint to go on from: keep at least 1"
        raise ConfigurationError(msg)
    return keep


def doomed(steps: Iterable[int], *, keep: int, saved: int) -> Sequence[int]:
    """Return the steps to delete: all but the ``keep`` highest and ``saved``, the one that was just made durable."""
    return [step for step in sorted(steps)[:-keep] if step != saved]
