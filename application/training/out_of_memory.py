"""What a shortage of memory means for the process that met it."""

from __future__ import annotations

from holdfast.domain.errors import OutOfMemory, RestartNeeded, StepTorn


def without_remedy(shortage: OutOfMemory | StepTorn, rows: int) -> OutOfMemory:
    """Return the error of a step that fell short of memory with ``rows`` at once, and that nobody makes smaller."""
    msg = f"a step does not fit into memory in micro-batches of {rows} rows: {shortage}"
    if rows == 1:
        msg += "; let layers be computed again (model.gradient_checkpointing=full), or choose a smaller model or rows"
    return OutOfMemory(msg)


def refuse_other_try(shortage: OutOfMemory | StepTorn, where: str, *, num_ranks: int, is_retry_safe: bool) -> None:
    """Raise ``RestartNeeded`` if only a new process can try the step again that, ``where``, fell short of memory."""
    if isinstance(shortage, StepTorn):
        hindrance = "parameters and optimizer are of no one step"
    elif num_ranks > 1:
        hindrance = "the other ranks wait in its middle"
    elif not is_retry_safe:
        hindrance = "its gradients cannot be dropped"
    else:
        return
    msg = f"{where} ({shortage}), and {hindrance}: start the same command again, which takes fewer"
    raise RestartNeeded(msg)
