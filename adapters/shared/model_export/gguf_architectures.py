"""The architectures of llama.cpp that compute the same as models of transformers, and their fields in a GGUF file.

The names of fields and the forms of tensors are those of llama.cpp's own converter.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

Fields: TypeAlias = "dict[str, int | float | str]"
Describe: TypeAlias = "Callable[[Any], Fields]"

_UNSCALED = ("default", "linear", "llama3")


@final
@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """An architecture of llama.cpp: its ``name`` in the file, and what it demands of a model of transformers.

    ``fields`` returns its fields for a configuration, without the name before each. ``demands`` are the values that a
    configuration must have, each one of several. ``is_interleaved``: the two numbers that a rotation turns are
    neighbours in a head. ``transposed`` are parts of the names of tensors that transformers keeps as (inputs, outputs).
    ``unread`` are the fields of a configuration that transformers does not read from a file.
    """

    name: str
    fields: Describe
    demands: Mapping[str, Sequence[object]]
    unread: Sequence[str]
    is_interleaved: bool = False
    transposed: Sequence[str] = ()


def architecture_of(config: Any) -> GgufArchitecture:
    """Return the architecture that computes what the ``config`` of transformers describes.

    Raises ``ConfigurationError`` with the field that no architecture of llama.cpp has.
    """
    found = _ARCHITECTURES.get(config.model_type)
    if found is None:
        known = ", ".join(_ARCHITECTURES)
        msg = f"a model of the type {config.model_type} cannot be written as GGUF: the types that can are {known}"
        raise ConfigurationError(msg)
    for field, values in found.demands.items():
        if (value := getattr(config, field, values[0])) not in values:
            wanted = " or ".join(map(str, values))
            msg = (
                f"{field} is {value}, but llama.cpp computes models of the type {config.model_type} with {wanted} only"
            )
            raise ConfigurationError(msg)
    _check_window(config)
    return found


def extra_tensors(config: Any) -> Mapping[str, Tensor]:
    """Return the tensors, fp32, of a file that are no weights: the scaling of frequencies, as Llama 3.1 defines it."""
    rope = _rope_of(config)
    if rope.get("rope_type") != "llama3":
        return {}
    size = _head_size(config)
    frequencies = rope["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * torch.pi)  # within the original positions
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return {"rope_freqs.weight": (1 / ((1 - kept) / factor + kept)).float()}


def in_file_form(architecture: GgufArchitecture, config: Any, name: str, tensor: Tensor) -> Tensor:
    """Return the ``tensor`` called ``name`` in transformers in the shape and order that the file needs, same dtype."""
    if any(part in name for part in architecture.transposed):
        return tensor.t()
    if architecture.is_interleaved and (heads := _rotated_heads(config, name)) is not None:
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor


def _rotated_heads(config: Any, name: str) -> int | None:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return next((count for part, count in heads.items() if f".{part}." in name), None)


def _check_window(config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True) and window < config.max_position_embeddings:
        msg = (
            f"sliding_window is {window}, but llama.cpp has no window in models of the type {config.model_type}: "
            "such a model cannot be written as GGUF"
        )
        raise ConfigurationError(msg)


def _rotary_fields(config: Any) -> Fields:
    """Return the fields of a model with rotary positions, without those of its norms."""
    rope, size = _rope_of(config), _head_size(config)
    kind = rope.get("rope_type", "default")
    if kind not in _UNSCALED or rope.get("partial_rotary_factor", 1.0) != 1.0:
        msg = f"rope_parameters are {kind}, but only whole default, linear or llama3 ones can be written as GGUF"
        raise ConfigurationError(msg)
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope.get("factor", 1.0))}
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "vocab_size": config.vocab_size,
        "rope.dimension_count": size,
        "rope.freq_base": float(rope["rope_theta"]),
        **(scaling if kind == "linear" else {}),
    }


def _llama_fields(config: Any) -> Fields:
    return {**_rotary_fields(config), "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps)}


def _starcoder2_fields(config: Any) -> Fields:
    return {**_rotary_fields(config), "attention.layer_norm_epsilon": float(config.norm_epsilon)}


def _gpt2_fields(config: Any) -> Fields:
    return {
        "context_length": config.n_positions,
        "embedding_length": config.n_embd,
        "block_count": config.n_layer,
        "feed_forward_length": 4 * config.n_embd if config.n_inner is None else config.n_inner,
        "attention.head_count": config.n_head,
        "attention.layer_norm_epsilon": float(config.layer_norm_epsilon),
    }


def _rope_of(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


_SILU = MappingProxyType({"hidden_act": ("silu", "swish")})
_LLAMA = ("attention_bias", "mlp_bias", "rope_parameters")
_GPT2_DEMANDS = MappingProxyType(
    {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
)
_GPT2_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_ARCHITECTURES = MappingProxyType(
    {
        "llama": GgufArchitecture("llama", _llama_fields, _SILU, _LLAMA, is_interleaved=True),
        "mistral": GgufArchitecture("llama", _llama_fields, _SILU, ("rope_parameters",), is_interleaved=True),
        "qwen2": GgufArchitecture("qwen2", _llama_fields, _SILU, ("rope_parameters",)),
        "qwen3": GgufArchitecture("qwen3", _llama_fields, _SILU, ("head_dim", "attention_bias", "rope_parameters")),
        "starcoder2": GgufArchitecture(
            "starcoder2",
            _starcoder2_fields,
            MappingProxyType({"hidden_act": ("gelu_pytorch_tanh", "gelu_new")}),
            ("use_bias", "rope_parameters", "sliding_window"),
        ),
        "gpt2": GgufArchitecture(
            "gpt2", _gpt2_fields, _GPT2_DEMANDS, ("n_positions", "n_inner"), transposed=_GPT2_TRANSPOSED
        ),
    }
)
