"""Going back to an older checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from holdfast.application.checkpointing.checkpointer import Checkpoints
    from holdfast.domain.commands import RollBack
    from holdfast.domain.training.progress import Progress

_REMEDY = "look at the data that were read there, lower optimizer.learning_rate"


def go_back(command: RollBack, left: Progress, checkpoints: Checkpoints) -> Progress | None:
    """Restore what ``command`` names, of a run that has come to ``left``; return from where it goes on.

    None, with nothing changed, if there is no checkpoint that old, and the command is optional. Raises
    ``TrainingError`` if it is not, or if the run may not go back once more.
    """
    num_returns = len(left.health.returns)
    if command.limit is not None and num_returns >= command.limit:
        msg = f"{command.reason}, after {num_returns} returns to earlier checkpoints, which is the limit: {_REMEDY}, "
        msg += "or allow more with recovery.health.max_rollbacks"
        raise TrainingError(msg)
    restored = None if command.rather is None else checkpoints.roll_back(command.rather)
    restored = restored or checkpoints.roll_back(command.step)
    if restored is None and not command.optional:
        step = command.step
        msg = f"{command.reason}, and there is no checkpoint of step {step} or before to go back to: {_REMEDY}, "
        msg += "or save more often with state_store.every"
        raise TrainingError(msg)
    return restored if restored is None or command.skip is None else left.back_at(restored)
