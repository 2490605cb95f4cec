"""The memory of training by the formula of docs/memory.md, from the settings, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.memory_check import OPTIMIZER_BYTES, described_model, num_parts
from holdfast.configs.ready_configurations import find_file
from holdfast.configs.sections.optimizer import DeepspeedOptimizerSettings, TorchOptimizerSettings
from holdfast.domain.training.memory_estimate import FP32, EngineSetup, Training, estimate_memory
from holdfast.domain.training.parameter_count import counted_shape, with_adapters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.memory_estimate import MemoryEstimate, ModelShape


def estimate_from_settings(
    settings: TrainSettings,
    hardware: Mapping[str, str],
    *,
    num_ranks: int,
    num_parameters: int | None,
    vocabulary_size: int,
    rows: int,
) -> MemoryEstimate | None:
    """Return the memory of training with micro-batches of ``rows``, by the formula.

    ``hardware`` has the precision and the attention of this machine. None if the formula does not know the model: its
    shape or its number of parameters, an optimizer of another package, 4-bit weights, or adapters beside some of its
    layers only.
    """
    described = described_model(settings)
    if num_parameters is None or described is None or described.shape is None:
        return None
    if not isinstance(settings.optimizer, TorchOptimizerSettings):
        return None
    shape: ModelShape | None = counted_shape(described.shape, num_parameters, vocabulary_size)
    if (lora := settings.model.lora) is not None:
        is_known = lora.target_modules == "auto" and lora.quantize == "none"
        shape = with_adapters(shape, lora.rank) if is_known and shape is not None else None
    return None if shape is None else estimate_memory(shape, training_of(settings, hardware, num_ranks, rows))


def layers_between(policy: str) -> int:
    """Return N of the policy every:N of gradient checkpointing, 1 for full, and 0 for none and for a budget."""
    return 1 if policy == "full" else int(policy.removeprefix("every:")) if policy.startswith("every:") else 0


def training_of(settings: TrainSettings, hardware: Mapping[str, str], num_ranks: int, rows: int) -> Training:
    """Return the options of training that memory depends on, for micro-batches of ``rows`` on each of the ranks."""
    packing, loss = settings.data.packing, settings.model.loss
    is_fp32 = hardware["optimizer.precision"] == "fp32"
    engine = _engine(settings, num_ranks, is_fp32=is_fp32)
    has_documents = packing.kind != "sliding" or packing.stride != settings.data.row_length
    return Training(
        rows=rows,
        length=settings.data.row_length,
        engine=engine,
        precision="fp32" if is_fp32 else "bf16",
        checkpoint_every=layers_between(settings.model.gradient_checkpointing),
        is_loss_chunked=loss != "plain" and not (loss == "auto" and engine.kind == "zero"),
        accumulates=settings.optimizer.num_rows > num_ranks * rows,
        is_masked=has_documents and hardware["model.attention"].startswith(("sdpa", "eager")),
    )


def _engine(settings: TrainSettings, num_ranks: int, *, is_fp32: bool) -> EngineSetup:
    optimizer: Any = settings.optimizer
    size = OPTIMIZER_BYTES[optimizer.algorithm] + (0 if optimizer.ema is None else FP32)
    if isinstance(optimizer, DeepspeedOptimizerSettings):
        return _zero(optimizer, num_ranks, size, is_fp32=is_fp32)
    parts = num_parts(settings, num_ranks, None)
    if parts == 1:
        return EngineSetup("ddp" if num_ranks > 1 else "single", num_ranks, optimizer_bytes=size)
    return EngineSetup("fsdp2", parts, is_offloaded=optimizer.offload is True, optimizer_bytes=size)


def _zero(optimizer: DeepspeedOptimizerSettings, num_ranks: int, size: float, *, is_fp32: bool) -> EngineSetup:
    """Return ZeRO as DeepSpeed's file and the settings configure it together."""
    path = optimizer.config and str(find_file(Path(optimizer.config)))
    file = lazy("holdfast.adapters.optimizer.deepspeed_config:read_config")(path) if path else {}
    values = lazy("holdfast.bootstrap.wiring.build_model:deepspeed_values")(optimizer)
    own = {**values, "bf16.enabled": not is_fp32, "optimizer.algorithm": optimizer.algorithm}
    whole = lazy("holdfast.adapters.optimizer.deepspeed_config:complete_config")(file, own, num_ranks=num_ranks)
    zero = whole["zero_optimization"]
    stage = zero.get("stage") or optimizer.stage or 0
    default = EngineSetup()
    return EngineSetup(
        "zero",
        num_ranks,
        stage=stage,
        is_offloaded=zero.get("offload_optimizer", {}).get("device") == "cpu",
        optimizer_bytes=size,
        bucket_parameters=zero.get("reduce_bucket_size", default.bucket_parameters)
        * (2 if zero.get("overlap_comm") and stage < 3 else 1),
        live_parameters=zero.get("stage3_max_live_parameters", default.live_parameters),
    )
