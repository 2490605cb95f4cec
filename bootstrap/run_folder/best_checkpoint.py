"""The best checkpoint of a run, among those that are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.domain.training.early_stopping import Patience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.ports.state_store import CheckpointInfo


def best_step(stored: Sequence[CheckpointInfo]) -> int | None:
    """Return the step of the best checkpoint of a run, of which these are ``stored``; None if none was evaluated.

    It is the best step by early stopping, which need not be stored, if the newest checkpoint knows one, otherwise that
    with the lowest evaluation loss.
    """
    newest = max(stored, key=lambda info: info.progress.step, default=None)
    patience = None if newest is None else newest.progress.patience
    return _of_lowest_loss(stored) if patience is None or patience.best is None else patience.best_step


def losses_of(stored: Sequence[CheckpointInfo]) -> Mapping[int, float]:
    """Return the evaluation losses of the ``stored`` checkpoints by step, as far as they are known.

    A loss that was measured only after the save, by the next start, is known from a later checkpoint.
    """
    losses = {info.progress.step: info.evaluation_loss for info in stored if info.evaluation_loss is not None}
    steps = {info.progress.step for info in stored}
    for info in stored:
        match info.progress.patience:
            case Patience(metric="eval_loss", best=float() as best, best_step=step) if step in steps:
                losses.setdefault(step, best)
    return losses


def best_of(
    stored: Sequence[CheckpointInfo], patience: Patience | None, *, keeps_best: bool
) -> Mapping[str, Any] | None:
    """Return step, metric, value and location of the best evaluation, None if the settings keep no best checkpoint.

    ``patience`` is the state of early stopping at the end of the run. The location is None if the step has no
    checkpoint.
    """
    if patience is not None and patience.best is not None:
        step, metric, value = patience.best_step, patience.metric, patience.best
    elif keeps_best and (best := _of_lowest_loss(stored)) is not None:
        step, metric, value = best, "eval_loss", losses_of(stored)[best]
    else:
        return None
    location = next((info.location for info in stored if info.progress.step == step), None)
    return {"metric": metric, "value": value, "step": step, "checkpoint": location}


def _of_lowest_loss(stored: Sequence[CheckpointInfo]) -> int | None:
    """Return the step of the lowest evaluation loss, of equal ones the last; None without a loss."""
    losses = losses_of(stored)
    return min(losses, key=lambda step: (losses[step], -step), default=None)
