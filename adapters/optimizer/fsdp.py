"""Fully sharded data parallel (torch's FSDP2): a shard of each parameter on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from typing_extensions import override

from holdfast.adapters.optimizer.engine import TorchEngine
from holdfast.adapters.shared.device.device_selection import computed_dtype
from holdfast.adapters.shared.modeling.network_layers import layers_of
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from holdfast.adapters.optimizer.weight_average import WeightAverage
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.ports.state_store import JoinedPart, StatePart


def shard(model: CausalLanguageModel, mesh: DeviceMesh, *, precision: str, offload: bool) -> None:
    """Shard ``model`` in place, layer by layer, over ``mesh``; ``offload`` stores the shards in host memory.

    A mesh of two axes has replicas along the first and shards along the second.

    With bf16 and fp16 the layers compute in that dtype and gradients are summed in fp32; the shards and the optimizer
    state are fp32.
    """
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

    @override
    def capture(self, *, copy: bool) -> Sequence[StatePart | JoinedPart]:
        self._shard_again()
        return super().capture(copy=copy)

    def _shard_again(self) -> None:
        """Free the gathered parameters that a forward or backward left in place when an error ended it."""
        assert isinstance(self.module, FSDPModule)
        if all(isinstance(parameter, DTensor) for parameter in self.module.parameters()):
            return
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.set_reshard_after_forward(True, recurse=False)  # ``reshard`` has no effect in a forward otherwise
                part.reshard()
        self.module.set_reshard_after_forward(False, recurse=False)
        if not all(isinstance(parameter, DTensor) for parameter in self.module.parameters()):
            msg = "an error left parameters gathered from all ranks, so the state of this rank alone was not saved"
            raise StateError(msg)
