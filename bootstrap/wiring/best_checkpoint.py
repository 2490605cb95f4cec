"""The best checkpoint of a run by its evaluations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from holdfast.domain.training.early_stopping import Patience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.configs.settings import TrainSettings
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
    elif keeps_best and (found := _of_lowest_loss(stored)) is not None:
        step, metric, value = found, "eval_loss", losses_of(stored)[found]
    else:
        return None
    location = next((info.location for info in stored if info.progress.step == step), None)
    return {"metric": metric, "value": value, "step": step, "checkpoint": location}


def limit_of_best(settings: TrainSettings, *, has_documents: bool) -> str | None:
    """Return the sentence on what ``keep_best`` cannot keep, None if nothing limits it or nobody asks for it.

    A checkpoint can be the best only if its step was evaluated. Early stopping saves at each best evaluation by itself.
    """
    store, saves, every = settings.state_store, settings.state_store.every_steps, settings.evaluation.every
    if not (store.keep_best or (store.archive is not None and store.archive.keep_best)):
        return None
    if not has_documents:
        return "keep_best has no effect, as nothing is evaluated: set data.holdout or evaluation.sets"
    if settings.recovery.early_stopping.rule is not None or not (saves and every) or saves % every == 0:
        return None
    return (
        f"keep_best chooses among checkpoints whose step was evaluated: with state_store.every={saves} and "
        f"evaluation.every={every} these are the multiples of {math.lcm(saves, every):,} and the end of the run; "
        "let evaluation.every divide state_store.every to choose among all"
    )


def _of_lowest_loss(stored: Sequence[CheckpointInfo]) -> int | None:
    """Return the step of the lowest evaluation loss, of equal ones the last; None without a loss."""
    losses = losses_of(stored)
    return min(losses, key=lambda step: (losses[step], -step), default=None)
