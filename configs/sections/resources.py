"""How much of its machine a run uses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from holdfast.configs.sections.base import Flag, Natural, Number, Positive, Section, Text


class ResourceSettings(Section):
    """What of the machine may be used, and whether that follows what the machine has to give."""

    auto_tune: Flag = Field(
        default=True,
        description="Whether batches ahead, reading threads, rows at once and the rhythm of checkpoints follow what "
        "the machine has to give.",
    )
    max_memory: Annotated[Number, Field(gt=0.1, le=1)] = Field(
        default=0.85, description="Share of the host's memory from which on a run uses less; 1 never does."
    )
    io_queue_size: Positive = Field(
        default=32, description="Batches that are prepared ahead at most where training waits for data."
    )
    policy: Text = Field(
        default="balance", description="What decides: balance, or a policy that another package offers."
    )
    policy_options: dict[str, Any] | None = Field(
        default=None, description="What an outside policy is to be given; null gives it nothing."
    )
    gpu_memory_fraction: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.9,
        description="Share of the GPU, or of what of the host's memory is free, that optimizer.micro_batch=auto fills.",
    )
    grow_after: Natural = Field(
        default=200,
        description="Steps without a shortage of memory after which a larger micro-batch is tried again, twice as many "
        "each time that it did not fit; 0 means never; of several processes none tries.",
    )
