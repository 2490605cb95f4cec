"""Advice on what to try after a failure."""

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

_ADVICE: Sequence[tuple[type[BaseException], Sequence[str]]] = (
    (
        OutOfMemory,
        (
            "set optimizer.micro_batch lower: the batch stays what it is, and so does the result but for rounding",
            "set model.gradient_checkpointing=full, which trades time for memory",
            "lower data.sequence_length, or take a smaller model: either makes it another run",
        ),
    ),
    (
        MemoryError,
        (
            "see in memory.json who holds the memory of this machine: end what else needs it",
            "lower data.shuffle_tokens and data.prefetch, or set state_store.background=false",
        ),
    ),
    (
        NonFiniteGradients,
        (
            "lower optimizer.learning_rate or lengthen optimizer.schedule.warmup_steps",
            "take optimizer.precision=bf16 or fp32 in place of fp16",
            "look at the documents of batch.json: text of another kind, or broken",
        ),
    ),
    (
        TokensLost,
        ("start the same command again, which makes these tokens again: train --supervise does so by itself",),
    ),
    (
        DataError,
        (
            "look at the file and the place that the cause names",
            "once the file is repaired: the same command with --accept-changed-data continues with it as it is now",
            "data.on_error=skip leaves a record out that cannot be used, and writes it to rejected.jsonl",
        ),
    ),
    (
        StateError,
        (
            "see in memory.json how much disk is free, and whether the folder of the run can be written",
            "python -m application inspect RUN tells which checkpoints verify",
        ),
    ),
    (RestartNeeded, ("start the same command again: train --supervise does so by itself",)),
    (ConfigurationError, ("change the setting that the cause names; python -m application config shows all",)),
    (
        OSError,
        (
            "see in memory.json how much disk is free, and whether the files that the cause names can be reached",
            "data on a network: see that the network is there, or set data.retry.deadline_seconds higher",
        ),
    ),
    (KeyboardInterrupt, ("nothing: a person has interrupted the run",)),
    (SystemExit, ("see in traceback.txt which library or plug-in has ended the process",)),
    (TrainingError, ("do what the cause says; with several ranks look for the rank that failed first",)),
)
_UNEXPECTED = (
    "see in traceback.txt where it comes from: if it is your own code or plug-in, correct it there",
    "try once more: what comes again at the same step lies in the batch (batch.json), what does not in the machine",
    "report it, with this folder, if it is an error of Holdfast",
)


def remedies_for(error: BaseException) -> Sequence[str]:
    """Return what is worth trying after ``error``, the likeliest first."""
    assert not isinstance(error, LeaveAtOnce), "who leaves at once wants no advice"
    return next((words for kind, words in _ADVICE if isinstance(error, kind)), _UNEXPECTED)
