"""What is saved: a Llama's weights and what AdamW keeps of them, the same bits for every way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3
from safetensors.torch import load_file, save_file

from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE
from holdfast.adapters.shared.tensor_state.optimizer_state import OPTIMIZER_FILE
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.domain.data.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

    from holdfast.ports.optimizer import Trainable

_VOCABULARY, _LAYERS, _HEAD = 16_000, 10, 64
_BYTES = 12  # of a parameter and its two moments in fp32
_STEPS_TAKEN = 7.0


def width_of(gigabytes: float) -> int:
    """Return the width, a multiple of a head's, at which the state comes closest to ``gigabytes``."""
    return min(range(_HEAD, 4096, _HEAD), key=lambda width: abs(_parameters(width) * _BYTES - gigabytes * 1e9))


def _parameters(width: int) -> int:
    return 2 * _VOCABULARY * width + _LAYERS * (4 * width * width + 3 * width * _inner(width))


def _inner(width: int) -> int:
    return width * 27 // 10


def prepare(folder: Path, gigabytes: float) -> int:
    """Write the state that every way begins with into ``folder``; return its bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = width_of(gigabytes)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        intermediate_size=_inner(width),
        num_hidden_layers=_LAYERS,
        num_attention_heads=width // _HEAD,
        num_key_value_heads=width // _HEAD,
        max_position_embeddings=512,
    )
    config.save_pretrained(folder)
    torch.manual_seed(0)
    network = LlamaForCausalLM(config)
    weights = {name: tensor.detach() for name, tensor in network.named_parameters()}
    moments = {f"exp_avg/{name}": torch.randn_like(tensor) for name, tensor in weights.items()}
    moments |= {f"exp_avg_sq/{name}": torch.rand_like(tensor) for name, tensor in weights.items()}
    moments |= {f"step/{name}": torch.tensor(_STEPS_TAKEN) for name in weights}
    save_file(weights, folder / MODEL_FILE, {"format": "pt"})
    save_file(moments, folder / OPTIMIZER_FILE, {"format": "pt"})
    return sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))


def build_trainable(material: Path) -> Trainable:
    """Return Holdfast's trainable in the state that ``prepare`` wrote."""
    trainable = AccelerateOptimizer(device="cpu", precision="fp32").prepare(CausalLanguageModel(_network(material)))
    trainable.restore(material)
    return trainable


def build_torch(material: Path) -> tuple[Any, torch.optim.Optimizer]:
    """Return a network and torch's AdamW in the state that ``prepare`` wrote."""
    network = _network(material)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    weights, moments = load_file(material / MODEL_FILE), load_file(material / OPTIMIZER_FILE)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(weights[name])
            keys = ("step", "exp_avg", "exp_avg_sq")
            optimizer.state[parameter] = {key: moments[f"{key}/{name}"].clone() for key in keys}
    return network, optimizer


def _network(material: Path) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig.from_pretrained(material))


def tensors_of(network: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the live state by the names that a checkpoint of Holdfast gives it."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        tensors[name] = parameter.detach()
        tensors |= {f"{key}/{name}": value for key, value in optimizer.state[parameter].items()}
    return tensors


def captured_tensors(parts: Iterable[object]) -> dict[str, Tensor]:
    """Return the tensors of ``parts`` by name."""
    return {name: tensor for part in parts if isinstance(part, TensorsPart) for name, tensor in part.tensors.items()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of all names and bits."""
    hasher = blake3(max_threads=blake3.AUTO)
    for name in sorted(tensors):
        hasher.update(name.encode())
        hasher.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def spoil(trainable: Trainable) -> None:
    """Take a step, so that no bit of the state need be as it was."""
    ids = np.arange(16, dtype=np.int64).reshape(1, 16)
    batch = Batch(ids, np.zeros(1, np.int64), np.full(1, 16))
    with trainable.update(step=1, learning_rate=1e-3) as update:
        update.accumulate(batch, weight=1 / batch.num_targets, last=True)
        update.apply()
