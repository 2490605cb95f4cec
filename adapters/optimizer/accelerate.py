"""Trains through Hugging Face Accelerate and torch: on one device, or on several with DDP or FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin, InitProcessGroupKwargs
from typing_extensions import override

from holdfast.adapters.optimizer.algorithms.optimizer_factory import allocate_state
from holdfast.adapters.optimizer.ddp import DdpEngine
from holdfast.adapters.optimizer.engine import TorchEngine, TrainingEngine
from holdfast.adapters.optimizer.float8 import use_float8
from holdfast.adapters.optimizer.flops import describe
from holdfast.adapters.optimizer.fsdp import FsdpEngine, shard
from holdfast.adapters.optimizer.optimizer_spec import OptimizerSpec
from holdfast.adapters.optimizer.trainable import TorchTrainable
from holdfast.adapters.optimizer.weight_average import WeightAverage
from holdfast.adapters.shared.device.memory_errors import within_memory
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.network.ranks import world_size
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.optimizer import Optimizer, Trainable

if TYPE_CHECKING:
    from holdfast.adapters.optimizer.algorithms.optimizer_factory import ShardLayout


@final
class AccelerateOptimizer(Optimizer[CausalLanguageModel]):
    """Prepares a model to be trained by ``algorithm``, AdamW if none is given.

    ``device`` is cpu, cuda or mps; ``precision`` fp32, bf16, fp16 or fp8 (autocast: weights and optimizer stay fp32);
    ``clip`` bounds the gradient's norm; ``sequence_length`` only enters the FLOPs of attention. Where torchrun started
    several processes, each holds the whole model (``sharding`` ddp) or a shard of it (fsdp2), which ``offload`` stores
    in host memory between uses; auto chooses fsdp2 only if the whole model does not fit.
    """

    def __init__(
        self,
        *,
        device: str,
        precision: str,
        algorithm: OptimizerSpec | None = None,
        clip: float = 1.0,
        seed: int = 0,
        sequence_length: int = 0,
        sharding: str = "auto",
        offload: bool = False,
    ) -> None:
        self._device = device
        self._precision = precision
        self._spec = algorithm or OptimizerSpec()
        self._clip = clip
        self._seed = seed
        self._sequence_length = sequence_length
        self._sharding = sharding
        self._offload = offload

    @override
    def prepare(self, model: CausalLanguageModel) -> Trainable:
        AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  an earlier run may have set another precision
        steps = GradientAccumulationPlugin(num_steps=1)  # else the environment may set another number
        backends = []
        if self._offload and self._device == "cuda":  # shards in host memory are reduced and gathered there too
            backends.append(InitProcessGroupKwargs(backend="cuda:nccl,cpu:gloo"))
        accelerator = Accelerator(
            cpu=self._device == "cpu",
            mixed_precision="no",  # other precisions than fp32 are autocast here: Accelerate refuses fp16 on a CPU
            gradient_accumulation_plugin=steps,
            kwargs_handlers=backends,
        )
        if self._precision == "fp8":
            use_float8(model, sequence_length=self._sequence_length)
        hardware = describe(model, self._device, self._precision, self._sequence_length)
        engine = within_memory(self._device, self._wrap, model, accelerator)
        return TorchTrainable(engine, hardware, seed=self._seed)

    def _wrap(self, model: CausalLanguageModel, accelerator: Accelerator) -> TrainingEngine:
        device = accelerator.device
        is_sharded = world_size() > 1 and self._is_to_be_sharded(model, device)
        if is_sharded:
            _check_not_quantized(model)
            shard(model, device, precision=self._precision, offload=self._offload)
        elif self._offload:
            msg = "optimizer.offload stores the shards of a model in host memory, and this model is not sharded: "
            raise ConfigurationError(msg + "set optimizer.sharding=fsdp2 on several processes, or offload to false")
        else:
            accelerator.prepare_model(model, evaluation_mode=True)  # on its device
        optimizer = self._optimizer(model, "sharded" if is_sharded else "whole")
        average = None if self._spec.ema_decay is None else WeightAverage(model, self._spec.ema_decay)
        options: dict[str, Any] = {"clip": self._clip, "precision": self._precision, "average": average}
        if is_sharded:
            return FsdpEngine(model, optimizer, device, **options)
        if world_size() > 1:
            return DdpEngine(model, optimizer, device, **options)
        return TorchEngine(model, model, optimizer, device, **options)

    def _is_to_be_sharded(self, model: CausalLanguageModel, device: torch.device) -> bool:
        if self._sharding == "auto":
            return not _fits(model, device, averages=self._spec.ema_decay is not None)
        return self._sharding == "fsdp2"

    def _optimizer(self, model: CausalLanguageModel, layout: ShardLayout) -> torch.optim.Optimizer:
        optimizer = self._spec.build(model.network, self._device, layout)
        allocate_state(optimizer)
        return optimizer


def _fits(model: CausalLanguageModel, device: torch.device, *, averages: bool) -> bool:
    """Return whether fp32 weights, gradients and AdamW's state take less than four fifths of each rank's GPU memory.

    With ``averages`` there is an average of the weights too. Frozen parameters have none of these. All ranks get the
    same answer, as their collectives must match.
    """
    if device.type != "cuda":
        return True
    trained = 20 if averages else 16
    needed = sum(p.numel() * (trained if p.requires_grad else p.element_size()) for p in model.parameters())
    capacity = torch.tensor(torch.cuda.get_device_properties(device).total_memory, device=device)
    torch.distributed.all_reduce(capacity, op=torch.distributed.ReduceOp.MIN)
    return needed < 0.8 * int(capacity)


def _check_not_quantized(model: CausalLanguageModel) -> None:
    if any(hasattr(parameter, "quant_state") for parameter in model.parameters()):
        msg = "the model's 4-bit weights cannot be sharded: set optimizer.sharding=ddp, or model.lora.quantize=none"
        raise ConfigurationError(msg)
