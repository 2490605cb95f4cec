"""Refuses a model that does not fit into the available memory, before anything large is created."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.folder import began_with
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.process_group import mesh_of
from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings, TorchOptimizerSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import FP32
from holdfast.domain.training.memory_fit import MemoryPlan, SizedModel, refusal, warning
from holdfast.domain.training.parameter_count import fewest_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings import TrainSettings
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
    host: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_limits:host_room")(
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
    room: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_limits:host_room")(
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

    room: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_limits:gpu_room")(
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
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the model factory reports the problem
        return {}
    return found if isinstance(found, dict) else {}
