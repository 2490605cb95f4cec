"""Use of the machine's resources."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from holdfast.configs.sections.base import Flag, Natural, Number, Positive, Section, Text


class ResourceSettings(Section):
    """Limits on memory and prefetching, and their automatic adjustment."""

    auto_tune: Flag = Field(
        default=True,
        description="Whether to adjust prefetching, reader threads, micro-batch size and checkpoint frequency to the "
        "free resources of the machine during the run.",
    )
    max_memory: Annotated[Number, Field(gt=0.1, le=1)] = Field(
        default=0.85,
        description="Fraction of host memory in use above which the run reduces its own use; 1 disables this.",
    )
    io_queue_size: Positive = Field(
        default=32, description="Maximum number of batches prepared ahead when training waits for data."
    )
    policy: Text = Field(
        default="balance", description="Policy that makes the adjustments: balance, or one from another package."
    )
    policy_options: dict[str, Any] | None = Field(
        default=None, description="Arguments of an outside policy; null passes none."
    )
    gpu_memory_fraction: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.9,
        description="Fraction of GPU memory (on a CPU: of free host memory) that optimizer.micro_batch=auto may use.",
    )
    grow_after: Natural = Field(
        default=200,
        description="Steps without an out-of-memory error before a larger micro-batch is tried again; doubles after "
        "each failure. 0 disables it; runs of several processes never try.",
    )
