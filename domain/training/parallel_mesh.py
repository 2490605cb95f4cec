"""The ranks of a run as a grid of replicas, shards, stages, contexts and tensors."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ParallelMesh:
    """The numbers of ranks along each axis; of two consecutive ranks, the place along the last axis differs.

    ``replicate`` ranks hold the same weights and train on different rows; ``shard`` ranks share weights (FSDP2) and
    train on different rows. The ranks along ``context`` have the same rows and share their tokens; those along
    ``tensor`` have the same rows and share heads, neurons and vocabulary; those along ``pipeline`` have the same rows
    and different layers.
    """

    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1

    @classmethod
    def of(
        cls, num_ranks: int, *, replicate: int = 1, context: int = 1, tensor: int = 1, pipeline: int = 1
    ) -> ParallelMesh:
        """Return the mesh of ``num_ranks`` whose other axis, ``shard``, takes the remaining ranks.

        Raises ``ConfigurationError`` if the numbers do not divide that of the ranks, or with ``pipeline`` are not it.
        """
        if pipeline > 1 and (num_ranks != pipeline or replicate * context * tensor > 1):
            msg = (
                f"distributed.mesh.pipeline={pipeline} takes exactly {pipeline} processes and no other axis: there are "
            )
            raise ConfigurationError(msg + f"{num_ranks} processes, so start {pipeline}, or change the mesh")
        others = replicate * context * tensor
        if num_ranks % others:
            axes = {"replicate": replicate, "context": context, "tensor": tensor}
            named = " x ".join(f"{name} {number}" for name, number in axes.items() if number > 1)
            msg = f"distributed.mesh has {named}, which needs a multiple of {others} processes, and there are "
            raise ConfigurationError(msg + f"{num_ranks}: start another number of processes, or change the mesh")
        return cls(replicate, num_ranks // (others * pipeline), context, tensor, pipeline)

    def __str__(self) -> str:
        """Return the number of ranks, and the axes that differ from plain data parallelism."""
        axes = {"replicate": self.replicate, "context": self.context, "tensor": self.tensor, "pipeline": self.pipeline}
        named = ", ".join(f"{name} {number}" for name, number in axes.items() if number > 1)
        return f"{self.num_ranks} ({named})" if named else str(self.num_ranks)

    @property
    def num_ranks(self) -> int:
        """Return the number of all ranks."""
        return self.data_ranks * self.peers

    @property
    def data_ranks(self) -> int:
        """Return the number of groups of ranks with different rows."""
        return self.replicate * self.shard

    @property
    def peers(self) -> int:
        """Return the number of ranks that have the same rows."""
        return self.context * self.tensor * self.pipeline

    def data_rank(self, rank: int) -> int:
        """Return the number of the group of ``rank`` among those with different rows."""
        return rank // self.peers
