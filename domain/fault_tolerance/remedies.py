"""Advice on remedies after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.domain.errors import (
    ConfigurationError,
    DataError,
    LeaveAtOnce,
    NonFiniteGradients,
    OutOfMemory,
    RestartNeeded,
    StateError,
    TokensLost,
    TrainingError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FRESH = "--fresh (in Python fresh=True)"
"""How a command, and a host that calls ``build``, sets an old run aside."""
ACCEPT_CHANGED_DATA = "--accept-changed-data (in Python accept_changed_data=True)"

_ADVICE: Sequence[tuple[type[BaseException], Sequence[str]]] = (
    (
        OutOfMemory,
        (
            "lower optimizer.micro_batch: the batch stays the same, and so does the result but for rounding",
            "set model.gradient_checkpointing=full, which trades time for memory",
            "lower data.sequence_length, or choose a smaller model: either makes it a different run",
        ),
    ),
    (
        MemoryError,
        (
            "memory.json lists what uses the memory of this machine: end other programs that need it",
            "lower data.prefetch, or set state_store.background=false",
            "lower data.shuffle_tokens, which makes it a different run",
        ),
    ),
    (
        NonFiniteGradients,
        (
            "lower optimizer.learning_rate or lengthen optimizer.schedule.warmup_steps",
            "set optimizer.precision=bf16 or fp32 instead of fp16",
            "check the documents in batch.json for text of another kind, or broken text",
        ),
    ),
    (
        TokensLost,
        ("run the same command again, which recreates these tokens; train --supervise does so by itself",),
    ),
    (
        DataError,
        (
            "check the file at the position that the cause names",
            f"once the file is repaired, the same command with {ACCEPT_CHANGED_DATA} continues with it",
            "data.on_error=skip skips records that cannot be used, and lists them in rejected.jsonl",
        ),
    ),
    (
        StateError,
        (
            "check how much disk space is free (memory.json), and that the run folder can be written",
            "python -m application inspect RUN shows which checkpoints verify",
        ),
    ),
    (RestartNeeded, ("run the same command again; train --supervise does so by itself",)),
    (ConfigurationError, ("change the setting that the cause names; python -m application config shows all",)),
    (
        OSError,
        (
            "check how much disk space is free (memory.json), and that the files that the cause names can be reached",
            "if the data are on a network, check the connection, or raise data.retry.deadline_seconds",
        ),
    ),
    (KeyboardInterrupt, ("nothing: a person interrupted the run",)),
    (SystemExit, ("traceback.txt shows which library or plug-in ended the process",)),
    (TrainingError, ("follow the advice in the cause; with several ranks look for the rank that failed first",)),
)
_UNEXPECTED = (
    "traceback.txt shows where it comes from: if that is your own code or plug-in, correct it there",
    "try again: an error that recurs at the same step comes from the batch (batch.json), any other from the machine",
    "if it is an error of Holdfast, report it with this folder",
)


def remedies_for(error: BaseException) -> Sequence[str]:
    """Return advice on remedies after ``error``, the likeliest remedy first."""
    assert not isinstance(error, LeaveAtOnce), "LeaveAtOnce is not a failure"
    return next((words for kind, words in _ADVICE if isinstance(error, kind)), _UNEXPECTED)
