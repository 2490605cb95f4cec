"""The division of a model among ranks: whole, in shards (FSDP2), or on a mesh with tensor and context parallelism."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.distributed.device_mesh import init_device_mesh

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.parallel_mesh import ParallelMesh

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from holdfast.adapters.shared.modeling.pipeline_parallel import PipelineSchedule


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The wish for a division: ``sharding`` is auto, ddp or fsdp2; ``offload`` stores shards in host memory.

    ``mesh`` has all ranks; one of a single rank stands for any number of ranks along ``shard``. ``schedule`` is that of
    a pipeline.
    """

    sharding: str = "auto"
    offload: bool = False
    mesh: ParallelMesh = field(default_factory=ParallelMesh)
    schedule: PipelineSchedule = "1f1b"

    @property
    def needs_mesh(self) -> bool:
        """Return whether ranks have the same rows, or replicas of shards are wanted."""
        return self.mesh.peers * self.mesh.replicate > 1

    def resolved(self) -> Parallelism:
        """Return the division with the shards as replicas where ``sharding`` is ddp; only with a mesh."""
        mesh = self.mesh
        if self.sharding != "ddp":
            return self
        if self.offload:
            msg = "optimizer.offload stores the shards of a model in host memory, and optimizer.sharding=ddp makes "
            raise ConfigurationError(msg + "none: set optimizer.sharding=fsdp2, or offload to false")
        return Parallelism("ddp", mesh=ParallelMesh(mesh.replicate * mesh.shard, 1, mesh.context, mesh.tensor))

    def device_mesh(self, device: str) -> DeviceMesh:
        """Return the axes replicate, shard and tensor; ``shard`` includes the ranks of a context.

        Ranks of a context have the same rows, but different tokens of them, so their gradients are summed as if their
        rows were different.
        """
        mesh = self.mesh
        sizes = (mesh.replicate, mesh.shard * mesh.context, mesh.tensor)
        return init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard", "tensor"))

    def context_group(self, device: str) -> ProcessGroup:
        """Return the group of the ranks that divide the tokens of this rank's rows; collective."""
        mesh = self.mesh
        sizes = (mesh.data_ranks, mesh.context, mesh.tensor)
        return init_device_mesh(device, sizes, mesh_dim_names=("data", "context", "tensor"))["context"].get_group()
