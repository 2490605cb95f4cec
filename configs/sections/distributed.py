"""The processes that train together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, field_validator

from holdfast.configs.sections.base import PLUGIN, Natural, PluginSettings, Positive, Section, by_kind


class MeshSettings(Section):
    """The ranks as a grid: what those along each axis share; the remaining ranks share the weights (FSDP2)."""

    replicate: Positive = Field(
        default=1,
        description="Number of replicas of the sharded weights (HSDP), such as one per node: shards are then gathered "
        "within a node only.",
    )
    context: Positive = Field(
        default=1,
        description="Number of ranks that divide the tokens of each row (Ulysses), for rows that do not fit into one "
        "GPU; must divide the heads and the rows.",
    )
    tensor: Positive = Field(
        default=1,
        description="Number of ranks that divide heads, neurons and vocabulary of the model, such as the GPUs of one "
        "node; must divide all of them.",
    )
    pipeline: Positive = Field(
        default=1,
        description="Number of ranks that divide the layers of a model of model.kind=decoder, in stages; must be the "
        "number of processes.",
    )
    schedule: Literal["1f1b", "interleaved"] = Field(
        default="1f1b",
        description="Order of the micro-batches in the stages of a pipeline: each rank has one stage (1f1b), or two, "
        "and waits less (interleaved).",
    )


class SingleSettings(Section):
    """One process."""

    kind: Literal["single"] = Field(default="single", description="This process only.")


class _SeveralSettings(Section):
    mesh: MeshSettings = Field(default_factory=MeshSettings, description="Division of the model among the processes.")
    timeout_seconds: Positive = Field(
        default=1800,
        description="Seconds of silence after which a process is considered lost; must exceed the time of a save or "
        "an evaluation.",
    )


class AutoDistributedSettings(_SeveralSettings):
    """The processes that a launcher started, or that this command starts itself."""

    kind: Literal["auto"] = Field(
        default="auto",
        description="The processes that a launcher such as torchrun started; without a launcher, as many as "
        "distributed.processes says.",
    )
    processes: Positive | Literal["auto"] = Field(
        default="auto",
        description="Number of processes that this command starts on this machine if no launcher did; auto starts one "
        "per GPU.",
    )


class TorchDistributedSettings(_SeveralSettings):
    """The processes that torchrun started."""

    kind: Literal["torch"] = Field(
        default="torch", description="The processes that torchrun started; this command starts none itself."
    )


class RayDistributedSettings(_SeveralSettings):
    """The processes that Ray starts on the machines of a cluster."""

    kind: Literal["ray"] = Field(
        default="ray",
        description="A process for each worker of Ray Train, on the cluster of RAY_ADDRESS or on this machine.",
    )
    workers: tuple[Positive, Positive] = Field(
        default=(1, 1),
        description="Least and most number of workers; with different numbers the run grows and shrinks with the "
        "cluster, and goes on with the same samples.",
    )
    cpus_per_worker: Positive = Field(default=1, description="Processors that Ray reserves for a worker.")
    gpus_per_worker: Literal[0, 1] = Field(default=0, description="GPUs that Ray reserves for a worker.")
    max_failures: Natural = Field(
        default=100, description="Number of failures of workers after which Ray gives the run up."
    )
    resize_seconds: Positive = Field(default=60, description="Seconds between two looks for room for more workers.")

    @field_validator("workers")
    @classmethod
    def _are_in_order(cls, workers: tuple[int, int]) -> tuple[int, int]:
        if workers[0] > workers[1]:
            msg = f"goes from {workers[0]} to {workers[1]}: write the least number first"
            raise ValueError(msg)
        return workers


DistributedSettings = Annotated[
    Annotated[AutoDistributedSettings, Tag("auto")]
    | Annotated[SingleSettings, Tag("single")]
    | Annotated[TorchDistributedSettings, Tag("torch")]
    | Annotated[RayDistributedSettings, Tag("ray")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("auto", "single", "torch", "ray"),
]


def mesh_settings(distributed: DistributedSettings) -> MeshSettings:
    """Return how ``distributed`` divides the model; one process and plug-ins have no mesh, so nothing is divided."""
    return distributed.mesh if isinstance(distributed, _SeveralSettings) else MeshSettings()
