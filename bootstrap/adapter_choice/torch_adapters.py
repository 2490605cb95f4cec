"""Makes the model factory and the optimizer that the settings name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.process_group import pipeline_schedule
from holdfast.configs.ready_configurations import find_file
from holdfast.configs.sections.decoder import BUDGET, DecoderModelSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.optimizer import (
    AccelerateOptimizerSettings,
    DeepspeedOptimizerSettings,
    TorchOptimizerSettings,
)
from holdfast.domain.sizes import size_in_bytes
from holdfast.domain.training.memory_estimate import EngineSetup, Training
from holdfast.domain.training.memory_fit import CheckpointBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.parallel_mesh import ParallelMesh
    from holdfast.ports.model_factory import ModelFactory
    from holdfast.ports.optimizer import Optimizer


@final
@dataclass(frozen=True, slots=True)
class TorchRequest:
    """The settings of a model and its optimizer, ``hardware`` by ``choose_hardware``, and the ``rules`` of the run."""

    settings: TrainSettings
    hardware: Mapping[str, str]
    mesh: ParallelMesh
    rules: Mapping[str, int]
    report: Callable[[str], object]


def huggingface_factory(request: TorchRequest) -> ModelFactory[object]:
    """Return the factory of models of transformers."""
    model = request.settings.model
    assert isinstance(model, HuggingFaceModelSettings)
    made: ModelFactory[object] = lazy("holdfast.adapters.model_factory.huggingface:HuggingfaceModelFactory")(
        path=model.path,
        revision=model.revision,
        pretrained=model.loads_weights,
        config=model.config,
        attention=request.hardware["model.attention"],
        sequence_length=request.settings.data.sequence_length,
        trusts=lazy("holdfast.adapters.model_factory.loaded_weights:Trust")(
            code_of=model.trust_remote_code, pickle_of=model.trust_pickle
        ),
        gradient_checkpointing=checkpointing(request.settings, request.hardware["optimizer.precision"]),
    )
    return made


def decoder_factory(request: TorchRequest) -> ModelFactory[object]:
    """Return the factory of Holdfast's own decoder."""
    model = request.settings.model
    assert isinstance(model, DecoderModelSettings)
    made: ModelFactory[object] = lazy("holdfast.adapters.model_factory.decoder:DecoderModelFactory")(
        config=model.shape,
        path=model.path,
        dropout=model.dropped,
        attention=request.hardware["model.attention"],
        initialisation=model.initialisation,
        initializer_range=model.initializer_range,
        sequence_length=request.settings.data.sequence_length,
        gradient_checkpointing=checkpointing(request.settings, request.hardware["optimizer.precision"]),
    )
    return made


def accelerate_optimizer(request: TorchRequest) -> Optimizer[object]:
    """Return the optimizer on one device, with DDP, FSDP2 or a mesh."""
    chosen = request.settings.optimizer
    assert isinstance(chosen, AccelerateOptimizerSettings)
    made: Optimizer[object] = lazy("holdfast.adapters.optimizer.accelerate:AccelerateOptimizer")(
        device=request.hardware["optimizer.device"],
        precision=request.hardware["optimizer.precision"],
        algorithm=_algorithm(chosen, request.rules),
        clip=chosen.clip,
        seed=request.settings.run.seed,
        sequence_length=request.settings.data.sequence_length,
        parallelism=lazy("holdfast.adapters.optimizer.pipeline_engine:Parallelism")(
            chosen.sharding,
            offload=chosen.offload,
            mesh=request.mesh,
            schedule=pipeline_schedule(request.settings.distributed),
        ),
    )
    return made


def deepspeed_optimizer(request: TorchRequest) -> Optimizer[object]:
    """Return the optimizer of DeepSpeed."""
    chosen = request.settings.optimizer
    assert isinstance(chosen, DeepspeedOptimizerSettings)
    made: Optimizer[object] = lazy("holdfast.adapters.optimizer.deepspeed:DeepspeedOptimizer")(
        device=request.hardware["optimizer.device"],
        precision=request.hardware["optimizer.precision"],
        own=deepspeed_values(chosen),
        config=deepspeed_file(chosen, request.report),
        algorithm=_algorithm(chosen, request.rules),
        seed=request.settings.run.seed,
        sequence_length=request.settings.data.sequence_length,
    )
    return made


def _algorithm(chosen: TorchOptimizerSettings, rules: Mapping[str, int]) -> object:
    return lazy("holdfast.adapters.optimizer.optimizer_factory:OptimizerSpec")(
        chosen.algorithm,
        weight_decay=chosen.weight_decay,
        betas=chosen.betas,
        epsilon=chosen.epsilon,
        decay_embeddings=chosen.decay_embeddings,
        ema_decay=chosen.ema_decay,
        rule=rules["parameter_groups"],
    )


def deepspeed_values(optimizer: DeepspeedOptimizerSettings) -> dict[str, Any]:
    """Return the values of the run by DeepSpeed's dotted keys; None leaves the value to DeepSpeed's file."""
    return {
        "zero_optimization.stage": optimizer.stage,
        "zero_optimization.offload_optimizer.device": optimizer.offload,
        "zero_optimization.offload_param.device": optimizer.offload_parameters,
        "gradient_clipping": optimizer.clip,
        "train_batch_size": optimizer.num_rows,
        "train_micro_batch_size_per_gpu": optimizer.fixed_micro_batch,
        "optimizer.params.lr": optimizer.learning_rate,
        "optimizer.params.betas": optimizer.betas,
        "optimizer.params.eps": optimizer.epsilon,
        "optimizer.params.weight_decay": optimizer.weight_decay,
    }


def deepspeed_file(optimizer: DeepspeedOptimizerSettings, report: Callable[[str], object]) -> str | None:
    """Return the path of the DeepSpeed file, None if there is none; report the parts of it that are not used."""
    if optimizer.config is None:
        return None
    path = str(find_file(Path(optimizer.config)))
    if (note := lazy("holdfast.adapters.optimizer.deepspeed_config:unused_parts")(path)) is not None:
        report(note)
    return path


def checkpointing(settings: TrainSettings, precision: str) -> str | CheckpointBudget:
    """Return the layers of the model to recompute: a policy, or the budget from which the choice follows."""
    policy: str = settings.model.gradient_checkpointing
    if not policy.startswith(BUDGET):
        return policy
    optimizer, packing = settings.optimizer, settings.data.packing
    whole = -(-optimizer.num_rows // int(os.environ.get("WORLD_SIZE", "1")))
    training = Training(
        rows=min(optimizer.fixed_micro_batch or whole, whole),
        length=settings.data.row_length,
        engine=EngineSetup("zero" if optimizer.kind == "deepspeed" else "single"),
        precision="fp32" if precision == "fp32" else "bf16",  # others keep as many bytes
        is_masked=packing.kind != "sliding" or packing.stride != settings.data.row_length,
    )
    return CheckpointBudget(size_in_bytes(policy.removeprefix(BUDGET)), training)
