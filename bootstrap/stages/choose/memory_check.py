"""Refuses a model that does not fit into the available memory, before anything large is created."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.run_folder.folder import began_with
from holdfast.configs.ready_configurations import find_file
from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.optimizer import (
    AccelerateOptimizerSettings,
    DeepspeedOptimizerSettings,
    TorchOptimizerSettings,
)
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import FP32, EngineSetup, Training, estimate_memory
from holdfast.domain.training.memory_fit import MemoryPlan, SizedModel, refusal, warning
from holdfast.domain.training.parameter_count import counted_shape, fewest_parameters, with_adapters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.memory_estimate import MemoryEstimate, ModelShape
    from holdfast.domain.training.memory_fit import MemoryCapacity
    from holdfast.ports.model_factory import Model as AnyModel
    from holdfast.ports.model_factory import ModelFactory
    from holdfast.ports.tokenizer import Tokenizer

OPTIMIZER_BYTES = {"adamw": 8, "muon": 4, "lion": 4, "adamw_8bit": 2}
"""The bytes of optimizer state for each trained parameter, by the algorithm."""
_ACCELERATORS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
_LARGEST_CONFIG = 1 << 20
_ID_BYTES = 8  # of a token in a batch
_SHORTEST = 8  # that a row may be, while data.sequence_length=auto is not decided


def refuse_from_settings(settings: TrainSettings, num_ranks: int, *, is_from_outside: bool = False) -> str | None:
    """Raise ``ConfigurationError`` if the settings alone show that the model does not fit; imports nothing.

    Returns a clause about a shortage if the model leaves little memory, else None. Building a model takes host memory
    for any device. The memory of training is added only if the run trains on the CPU. With ``is_from_outside`` the host
    program provides the model or its optimizer, whose memory cannot be counted here.
    """
    _refuse_batch(settings, num_ranks)
    model = described_model(settings)
    if model is None or is_from_outside:
        return None
    device = settings.optimizer.device
    is_on_host = device == "cpu" or (
        device == "auto" and not any(map(os.path.exists, _ACCELERATORS)) and sys.platform == "linux"
    )
    return refuse(model, settings, num_ranks, "cpu" if is_on_host else None)


def refuse_counted(
    settings: TrainSettings,
    factory: ModelFactory[AnyModel],
    tokenizer: Tokenizer,
    *,
    num_ranks: int,
    device: str | None,
    is_from_outside: bool = False,
) -> str | None:
    """Check as ``refuse_from_settings`` does, for a model whose size is not in the settings, before it is built."""
    is_of_torch = isinstance(settings.optimizer, TorchOptimizerSettings)
    is_known_already = described_model(settings) is not None or not is_of_torch
    if is_known_already or is_from_outside:
        return None
    number = factory.count_parameters(vocabulary_size=tokenizer.vocabulary_size, end_of_text=tokenizer.end_of_text)
    if number is None:
        return None
    return refuse(SizedModel(number), settings, num_ranks, device)


def refuse(model: SizedModel, settings: TrainSettings, num_ranks: int, device: str | None) -> str | None:
    """Raise ``ConfigurationError`` if ``model`` cannot be trained on ``device`` (None if not known yet).

    Returns a clause about a shortage if the model leaves little memory for everything else, else None.
    """
    if not isinstance(settings.optimizer, TorchOptimizerSettings):
        return None
    is_shared_out = device not in ("cpu", "cuda") or not isinstance(settings.optimizer, AccelerateOptimizerSettings)
    lora = settings.model.lora
    plan = MemoryPlan(
        optimizer_bytes=OPTIMIZER_BYTES[settings.optimizer.algorithm],
        is_on_host=device == "cpu" or _is_offloaded(settings),
        num_parts=num_parts(settings, num_ranks, device),
        trains_all=lora is None,
        loads_weights=settings.model.loads_weights,
        weight_bytes=_weight_bytes(settings),
        may_keep_8_bits=isinstance(settings.optimizer, AccelerateOptimizerSettings) and num_ranks == 1,
        only_built=is_shared_out,
    )
    host: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_gauge:host_room")(
        int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    )
    length = settings.data.sequence_length if isinstance(settings.data.sequence_length, int) else _SHORTEST
    model = replace(model, length=length)
    refused = partial(refusal, model, plan, host, _gpu(device, plan))
    if refused() is not None:
        raise ConfigurationError(refused(is_begun=began_with(settings.run.directory) is not None))
    return warning(model, plan, host)


def _refuse_batch(settings: TrainSettings, num_ranks: int) -> None:
    """Raise ``ConfigurationError`` if the token ids of one step alone exceed the memory of a rank."""
    rows = settings.optimizer.batch_size
    if not isinstance(rows, int):  # still to be decided, by the memory that there is
        return
    room: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_gauge:host_room")(
        int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    )
    length = settings.data.sequence_length if isinstance(settings.data.sequence_length, int) else _SHORTEST
    most = int(room.num_bytes // (length * _ID_BYTES)) * mesh_of(settings.distributed, num_ranks).data_ranks
    if rows > most:
        msg = (
            f"optimizer.batch_size is {rows:,}, but the ids of at most {most:,} rows fit into memory, as {room.words}: "
            "lower it"
        )
        raise ConfigurationError(msg)


def _weight_bytes(settings: TrainSettings) -> float:
    """Return the bytes of a stored weight, with its average; that of adapters is too small to count."""
    lora = settings.model.lora
    if lora is not None:
        return 0.5 if lora.quantize == "4bit" else FP32
    optimizer = settings.optimizer
    has_average = isinstance(optimizer, TorchOptimizerSettings) and optimizer.ema is not None
    return 2 * FP32 if has_average else FP32


def _gpu(device: str | None, plan: MemoryPlan) -> MemoryCapacity | None:
    if device != "cuda" or plan.only_built or plan.is_on_host:
        return None
    import torch

    room: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_gauge:gpu_room")(
        torch.cuda.get_device_properties(0).total_memory
    )
    return room


def num_parts(settings: TrainSettings, num_ranks: int, device: str | None) -> int:
    """Return the number of ranks that may share the weights and the optimizer."""
    mesh = mesh_of(settings.distributed, num_ranks)
    if mesh.peers > 1 or _may_shard(settings, device):
        return num_ranks // mesh.replicate
    return 1


def _may_shard(settings: TrainSettings, device: str | None) -> bool:
    sharding = settings.optimizer.sharding
    return sharding == "fsdp2" or (sharding == "auto" and device == "cuda")


def _is_offloaded(settings: TrainSettings) -> bool:
    return settings.optimizer.offload is True


def described_model(settings: TrainSettings) -> SizedModel | None:
    """Return the size of the model by the settings or the local model folder, None if it is in neither."""
    chosen = settings.model
    if not isinstance(chosen, (HuggingFaceModelSettings, DecoderModelSettings)):
        return None
    if chosen.path is None:
        fields = chosen.shape | {"model_type": "decoder"} if isinstance(chosen, DecoderModelSettings) else chosen.config
        return fewest_parameters(fields or {})
    return fewest_parameters(_config_in(Path(chosen.path)))


def _config_in(folder: Path) -> Mapping[str, Any]:
    file = folder / "config.json"
    try:
        if not file.is_file() or file.stat().st_size > _LARGEST_CONFIG:
            return {}
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the model factory reports the problem
        return {}
    return config if isinstance(config, dict) else {}


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
    values = lazy("holdfast.bootstrap.adapter_choice.torch_adapters:deepspeed_values")(optimizer)
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
