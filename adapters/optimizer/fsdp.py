"""Fully sharded data parallel (torch's FSDP2): a shard of each parameter on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from typing_extensions import override

from holdfast.adapters.optimizer.engine import TorchEngine
from holdfast.adapters.shared.device.device_selection import computed_dtype
from holdfast.adapters.shared.modeling.network_layers import layers_of
from holdfast.adapters.shared.network.ranks import world_size

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from holdfast.adapters.optimizer.weight_average import WeightAverage
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel


def shard(model: CausalLanguageModel, device: torch.device, *, precision: str, offload: bool) -> None:
    """Shard ``model`` in place, layer by layer, over all ranks; ``offload`` stores the shards in host memory.

    With bf16 and fp16 the layers compute in that dtype and gradients are summed in fp32; the shards and the optimizer
    state are fp32.
    """
    mesh = init_device_mesh(device.type, (world_size(),))
    lower = None if precision == "fp32" else computed_dtype(precision)
    mixed = MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32 if lower else None)
    where = CPUOffloadPolicy() if offload else OffloadPolicy()
    for part in (*layers_of(model), model):
        sharded = fully_shard(part, mesh=mesh, mp_policy=mixed, offload_policy=where)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)  # a sum over ranks, not a mean
        sharded.set_force_sum_reduction_for_comms(True)  # the only one that gloo supports
    register_fsdp_forward_method(model, "generate")


@final
class FsdpEngine(TorchEngine):
    """A model sharded by ``shard``, with an optimizer built afterwards.

    The gradients of each micro-batch are summed over ranks at once. If they were held until the last micro-batch, they
    would take as much memory as the whole model, and torch would keep those of an abandoned update.
    """

    is_sharded = True

    def __init__(
        self,
        model: CausalLanguageModel,
        optimizer: Optimizer,
        device: torch.device,
        *,
        clip: float,
        precision: str,
        average: WeightAverage | None = None,
    ) -> None:
        super().__init__(model, model, optimizer, device, clip=clip, precision=precision, average=average)

    @override
    def rest(self) -> None:
        assert isinstance(self.module, FSDPModule)
        self.module.reshard()  # else the forward after a step would use stale gathered parameters
