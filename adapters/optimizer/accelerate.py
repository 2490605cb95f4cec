"""Trains through Hugging Face Accelerate and torch: on one device, or on several with DDP or FSDP2."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, final

import torch
from accelerate import PartialState
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from typing_extensions import override

from holdfast.adapters.optimizer.engine import DdpEngine, EngineOptions, TensorEngine, TorchEngine, TrainingEngine
from holdfast.adapters.optimizer.flops import describe
from holdfast.adapters.optimizer.fsdp import FsdpEngine, refuse_launched_engine, shard
from holdfast.adapters.optimizer.optimizer_factory import OptimizerSpec, allocate_state
from holdfast.adapters.optimizer.pipeline_engine import Parallelism, PipelineEngine
from holdfast.adapters.optimizer.trainable import TorchTrainable
from holdfast.adapters.optimizer.weight_average import WeightAverage
from holdfast.adapters.shared.device.memory_errors import within_memory
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.deferred_weights import place_weights
from holdfast.adapters.shared.modeling.tensor_parallel import ContextParallelism, PipelineParallelism, TensorParallelism
from holdfast.adapters.shared.network.ranks import world_size
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.optimizer import Optimizer, Trainable

if TYPE_CHECKING:
    from holdfast.adapters.optimizer.optimizer_factory import ShardLayout

ON_EACH_RANK = Parallelism()


@final
class AccelerateOptimizer(Optimizer[CausalLanguageModel]):
    """Prepares a model to be trained by ``algorithm``, AdamW if none is given.

    ``device`` is cpu, cuda or mps; ``precision`` fp32, bf16, fp16 or fp8 (autocast: weights and optimizer stay fp32);
    ``clip`` bounds the gradient's norm; ``sequence_length`` only enters the FLOPs of attention. Where torchrun started
    several processes, they divide the model by ``parallelism``: each holds the whole model (``sharding`` ddp) or a
    shard of it (fsdp2), which ``offload`` stores in host memory between uses; auto chooses fsdp2 only if the whole
    model does not fit. On a mesh, auto is fsdp2.
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
        parallelism: Parallelism = ON_EACH_RANK,
    ) -> None:
        self._device = device
        self._precision = precision
        self._spec = algorithm or OptimizerSpec()
        self._clip = clip
        self._seed = seed
        self._sequence_length = sequence_length
        self._parallelism = parallelism

    @override
    def prepare(self, model: CausalLanguageModel) -> Trainable:
        refuse_launched_engine()
        device = self._open_group()
        if self._precision == "fp8":
            use_float8(model, sequence_length=self._sequence_length)
        hardware = describe(model, self._device, self._precision, self._sequence_length)
        engine = within_memory(self._device, self._wrap, model, device)
        return TorchTrainable(engine, hardware, seed=self._seed, mesh=self._parallelism.mesh)

    def _open_group(self) -> torch.device:
        """Let Accelerate open the group of the ranks, if there are several, and return this rank's device."""
        options = {}
        if self._parallelism.offload and self._device == "cuda":  # shards are reduced and gathered in host memory too
            options["backend"] = "cuda:nccl,cpu:gloo"
        state = PartialState(cpu=self._device == "cpu", **options)
        num_ranks = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else state.num_processes
        if state.num_processes != num_ranks or (num_ranks > 1 and state.device.type != self._device):
            msg = (
                f"this process has used Accelerate on {state.device.type}, as one of {state.num_processes}, and "
                f"the run is on {self._device}, on {num_ranks} ranks: start it in a process of its own"
            )
            raise ConfigurationError(msg)
        # Accelerate keeps the device of the first run in a process
        return state.device if state.device.type == self._device else torch.device(self._device)

    def _wrap(self, model: CausalLanguageModel, device: torch.device) -> TrainingEngine:
        if self._parallelism.mesh.pipeline > 1:
            return self._wrap_in_stages(model, device)
        if self._parallelism.needs_mesh:
            return self._wrap_on_mesh(model, device)
        is_sharded = world_size() > 1 and self._is_to_be_sharded(model, device)
        if is_sharded:
            _check_not_quantized(model)
            mesh = init_device_mesh(device.type, (world_size(),))
            shard(model, mesh, precision=self._precision, offload=self._parallelism.offload)
            self._place(model, device)
        elif self._parallelism.offload:
            msg = "optimizer.offload stores the shards of a model in host memory, and this model is not sharded: "
            raise ConfigurationError(msg + "set optimizer.sharding=fsdp2 on several processes, or offload to false")
        else:
            self._move(model, device)
        optimizer = self._optimizer(model, "sharded" if is_sharded else "whole")
        options = self._options(model)
        if is_sharded:
            return FsdpEngine(model, model, optimizer, device, **options)
        if world_size() > 1:
            return DdpEngine(model, optimizer, device, **options)
        return TorchEngine(model, model, optimizer, device, **options)

    def _wrap_on_mesh(self, model: CausalLanguageModel, device: torch.device) -> TrainingEngine:
        wanted = self._parallelism.resolved()
        if model.adapters is not None or self._precision == "fp8":
            msg = "distributed.mesh has tensor, context or replicate, which work with neither model.lora nor fp8: "
            raise ConfigurationError(msg + "leave them at 1")
        if model.deferred is None:
            self._move(model, device)
        mesh = wanted.device_mesh(device.type)
        if wanted.mesh.tensor > 1:
            model.tensor_parallelism = TensorParallelism(model.network, mesh["tensor"])
        if wanted.mesh.context > 1:
            group = wanted.context_group(device.type)
            model.context_parallelism = ContextParallelism(model.network, group, tensor=wanted.mesh.tensor)
        if mesh["replicate"].size() * mesh["shard"].size() == 1:
            self._place(model, device)
            optimizer = self._optimizer(model, "sharded")
            return TensorEngine(model, model, optimizer, device, **self._options(model))
        axes = mesh["shard"] if wanted.mesh.replicate == 1 else mesh["replicate", "shard"]
        shard(model, axes, precision=self._precision, offload=wanted.offload)
        self._place(model, device)
        return FsdpEngine(model, model, self._optimizer(model, "sharded"), device, **self._options(model))

    def _wrap_in_stages(self, model: CausalLanguageModel, device: torch.device) -> TrainingEngine:
        if model.adapters is not None or self._precision == "fp8" or self._parallelism.offload:
            msg = "distributed.mesh.pipeline works with none of model.lora, fp8 and optimizer.offload: leave it at 1"
            raise ConfigurationError(msg)
        if self._parallelism.sharding == "fsdp2":
            msg = (
                "distributed.mesh.pipeline divides the layers, and optimizer.sharding=fsdp2 would divide each of them: "
            )
            raise ConfigurationError(msg + "set optimizer.sharding=auto")
        # before the model goes to the device, which need only hold this rank's layers
        model.pipeline_parallelism = PipelineParallelism(model.network, self._parallelism.schedule)
        self._move(model, device)
        return PipelineEngine(model, self._optimizer(model, "whole"), device, **self._options(model))

    def _move(self, model: CausalLanguageModel, device: torch.device) -> None:
        """Move ``model`` to its device, or place its weights there if they are deferred."""
        if model.deferred is None:
            model.to(device)
        self._place(model, device)

    def _place(self, model: CausalLanguageModel, device: torch.device) -> None:
        """Place the weights of ``model``, if they are deferred, now that this rank has only its part of them."""
        if model.deferred is not None:
            place_weights(model, device, offload=self._parallelism.offload)

    def _options(self, model: CausalLanguageModel) -> EngineOptions:
        average = None if self._spec.ema_decay is None else WeightAverage(model, self._spec.ema_decay)
        return {"clip": self._clip, "precision": self._precision, "average": average}

    def _is_to_be_sharded(self, model: CausalLanguageModel, device: torch.device) -> bool:
        if self._parallelism.sharding == "auto":
            return not _fits(model, device, averages=self._spec.ema_decay is not None)
        return self._parallelism.sharding == "fsdp2"

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


_ALIGNMENT = 16  # of all sizes in a product, as the hardware requires
_SMALL_INPUT, _SMALL_OUTPUT = 4096, 1024  # torchao's documentation: no more than this on both sides is slower in 8 bits


def use_float8(model: CausalLanguageModel, *, sequence_length: int, emulate: bool = False) -> None:
    """Make the large linear layers of ``model``, except its head, multiply in 8 bits; parameters and names stay.

    Each tensor is scaled as a whole, by its largest absolute value at that moment. ``emulate`` computes the same on any
    hardware, in layers of any size. Raises ``ConfigurationError`` if torchao is missing, the model has adapters, or no
    layer is large enough to gain.
    """
    if model.adapters is not None:
        msg = "optimizer.precision is fp8, but model.lora keeps the large layers frozen: set optimizer.precision=bf16"
        raise ConfigurationError(msg)
    try:
        torchao = import_module("torchao.float8")
    except ImportError as error:
        msg = (
            'optimizer.precision is fp8, which needs another package: pip install "holdfast-lm[fp8]", or set '
            "optimizer.precision=bf16"
        )
        raise ConfigurationError(msg) from error
    head = model.network.get_output_embeddings()
    chosen = {
        name
        for name, module in model.network.named_modules()
        if type(module) is nn.Linear and module is not head and _gains(module, emulate=emulate)
    }
    if not chosen:
        msg = (
            f"optimizer.precision is fp8, but no linear layer of {type(model.network).__name__} is large enough to "
            "gain by it: set optimizer.precision=bf16"
        )
        raise ConfigurationError(msg)
    pads = sequence_length % _ALIGNMENT != 0  # tokens are a side of the weight's gradient
    config = torchao.Float8LinearConfig(emulate=emulate, pad_inner_dim=pads)
    torchao.convert_to_float8_training(model.network, module_filter_fn=lambda _, name: name in chosen, config=config)


def _gains(layer: nn.Linear, *, emulate: bool) -> bool:
    is_aligned = layer.in_features % _ALIGNMENT == layer.out_features % _ALIGNMENT == 0
    is_small = layer.in_features <= _SMALL_INPUT and layer.out_features <= _SMALL_OUTPUT
    return is_aligned and (emulate or not is_small)
