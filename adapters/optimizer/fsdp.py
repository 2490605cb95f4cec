"""Fully sharded data parallel (torch's FSDP2): a shard of each parameter on each rank."""

from __future__ import annotations

import logging
import os
from types import MappingProxyType
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
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

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


_log = logging.getLogger(__name__)
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "ACCELERATE_USE_DEEPSPEED": "set optimizer.kind=deepspeed",
        "ACCELERATE_USE_FSDP": "set optimizer.sharding=fsdp2",
        "ACCELERATE_USE_MEGATRON_LM": "set distributed.mesh, as there is no Megatron-LM",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "set distributed.mesh",
        "ACCELERATE_USE_SAGEMAKER": "start the processes with torchrun",
        "ACCELERATE_DYNAMO_BACKEND": "set model.compile",
        "ACCELERATE_TORCH_DEVICE": "set optimizer.device",
    }
)
_UNUSED: Mapping[str, str] = MappingProxyType(
    {
        "ACCELERATE_MIXED_PRECISION": "optimizer.precision",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "optimizer.batch_size and optimizer.micro_batch",
        "ACCELERATE_GRADIENT_CLIPPING": "optimizer.clip",
        "ACCELERATE_USE_CPU": "optimizer.device",
    }
)
_OFF = frozenset({"", "0", "1", "false", "no", "none", "n", "f", "off"})
"""Values that ask for nothing; one step of accumulation is none."""
_FLAGS_OFF = _OFF - {"1"}


def refuse_launched_engine(own: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigurationError`` if a variable of ``accelerate launch`` other than ``own`` asks for another engine.

    Variables in whose place the settings count are logged.
    """
    for name, remedy in _REMEDIES.items():
        if name != own and (value := environment.get(name, "")).lower() not in _FLAGS_OFF:
            msg = (
                f"the environment has {name}={value}, as accelerate launch sets it, and the settings choose the engine "
            )
            raise ConfigurationError(msg + f"here: {remedy}, and unset {name}")
    for name, setting in _UNUSED.items():
        if (value := environment.get(name, "")).lower() not in _OFF:
            _log.warning("the environment has %s=%s, which is not used: %s counts", name, value, setting)
