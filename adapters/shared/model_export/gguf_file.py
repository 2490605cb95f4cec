"""Writes a model and its tokenizer as one GGUF file, and lets transformers read such a file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

import numpy as np
import torch

from holdfast.adapters.shared.model_export.whole_model import silenced
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from holdfast.adapters.shared.model_export.gguf_vocabulary import GgufVocabulary

_FILE_TYPES = {"f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
_IN_BLOCKS, _BLOCK = ("q8_0", "q4_0"), 32
_EMBEDDINGS, _POSITIONS = ("token_embd.weight", "output.weight"), "position_embd.weight"


@final
@dataclass(frozen=True, slots=True)
class GgufDescription:
    """The texts of a file beside model and tokenizer: a name, a licence, and the chat template if there is one."""

    name: str
    license: str | None = None
    chat_template: str | None = None


@final
@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model as transformers describes it: the ``config``, its ``tensors`` by their names there, and the tokenizer.

    Tensors are on the CPU, in any floating-point dtype; tied ones are there once.
    """

    config: Any
    tensors: Mapping[str, Tensor]
    vocabulary: GgufVocabulary
    description: GgufDescription


class _FileTensor(NamedTuple):
    """A tensor of a file: its ``name`` there and its name in the model, its type in GGUF, and its shape in the file."""

    name: str
    source: str
    kind: str
    shape: tuple[int, ...]


def gguf_package() -> Any:
    """Return the package ``gguf``; raises ``ConfigurationError`` if it is not installed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        msg = 'GGUF needs another package: pip install "holdfast-lm[gguf]"'
        raise ConfigurationError(msg) from error


def write_gguf(model: GgufModel, path: Path, weights: str) -> Sequence[str]:
    """Write ``model`` to the new file ``path`` with matrices of the type ``weights``; return remarks on it.

    Vectors, norms and learned positions stay fp32. With ``q4_0`` the embedding and the output matrix are q8_0. A matrix
    whose rows do not fill blocks of 32 is f16. One tensor at a time is converted. Raises ``ConfigurationError`` if
    llama.cpp cannot compute the model or the type cannot hold its weights, and ``OSError``.
    """
    gguf = gguf_package()
    architecture = architecture_of(model.config)
    entries = _entries(gguf, architecture, model, weights)
    extra = extra_tensors(model.config)
    writer = gguf.GGUFWriter(path, architecture.name)
    try:
        for key, value in architecture.fields(model.config).items():
            _add(writer, f"{architecture.name}.{key}", value)
        _describe(gguf, writer, model, weights)
        for entry in (*(_FileTensor(name, name, "F32", tuple(each.shape)) for name, each in extra.items()), *entries):
            _announce(gguf, writer, entry)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in extra.values():
            writer.write_tensor_data(tensor.numpy())
        for entry in entries:
            tensor = in_file_form(architecture, model.config, entry.source, model.tensors[entry.source])
            writer.write_tensor_data(_converted(gguf, tensor.float().contiguous().numpy(), entry))
    finally:
        writer.close()
    return (*model.vocabulary.remarks, *_remarks(entries, weights))


def read_gguf(path: Path, original: Any) -> Any:
    """Return the model in ``path`` as transformers reads it, in fp32, with those fields of ``original`` it cannot read.

    ``original`` is the configuration that the file was written from. Raises ``StateError`` if weights are missing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    place, name = str(path.parent), path.name
    with silenced():
        config = AutoConfig.from_pretrained(place, gguf_file=name)
        for each in architecture_of(original).unread:
            setattr(config, each, getattr(original, each, None))
        network, report = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=name, config=config, dtype="float32", trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(report["missing_keys"]):
        msg = f"{path} lacks {len(missing)} of the model's tensors, such as {missing[0]}"
        raise StateError(msg)
    return network


def read_gguf_tokenizer(path: Path) -> Any:
    """Return the tokenizer in ``path`` as transformers reads it."""
    from transformers import AutoTokenizer

    with silenced():
        return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, trust_remote_code=False)


def _entries(gguf: Any, architecture: GgufArchitecture, model: GgufModel, weights: str) -> Sequence[_FileTensor]:
    [number] = [key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name]
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    entries = []
    for source, tensor in model.tensors.items():
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            msg = f"llama.cpp has no place for the tensor {source} in a model of the type {architecture.name}"
            raise ConfigurationError(msg)
        shape = tuple(in_file_form(architecture, model.config, source, tensor).shape)
        entries.append(_FileTensor(name, source, _kind_of(name, shape, weights), shape))
    return entries


def _kind_of(name: str, shape: tuple[int, ...], weights: str) -> str:
    if len(shape) < 2 or name == _POSITIONS:
        return "F32"
    if weights not in _IN_BLOCKS:
        return weights.upper()
    if shape[-1] % _BLOCK:
        return "F16"
    return "Q8_0" if name in _EMBEDDINGS else weights.upper()


def _describe(gguf: Any, writer: Any, model: GgufModel, weights: str) -> None:
    vocabulary, description = model.vocabulary, model.description
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(description.name)
    if description.license is not None:
        writer.add_license(description.license)
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[weights]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model(vocabulary.merging.model)
    writer.add_tokenizer_pre(vocabulary.merging.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merging.scores:
        writer.add_token_scores(vocabulary.merging.scores)
        writer.add_add_space_prefix(True)
    else:
        writer.add_token_merges(vocabulary.merging.merges)
    for name, number in vocabulary.special.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)
    if description.chat_template is not None:
        writer.add_chat_template(description.chat_template)


def _add(writer: Any, key: str, value: float | str) -> None:
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
    add(key, value)


def _announce(gguf: Any, writer: Any, entry: _FileTensor) -> None:
    if entry.kind == "F32":
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), 4 * prod(entry.shape))
        return
    kind = gguf.GGMLQuantizationType[entry.kind]
    size = gguf.quant_shape_to_byte_shape(entry.shape, kind)
    writer.add_tensor_info(entry.name, size, np.dtype(np.uint8), prod(size), raw_dtype=kind)


def _converted(gguf: Any, values: NDArray[np.float32], entry: _FileTensor) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        quantized: NDArray[Any] = gguf.quantize(values, gguf.GGMLQuantizationType[entry.kind])
    if entry.kind == "F16" and not np.isfinite(quantized).all() and np.isfinite(values).all():
        msg = f"{entry.source} holds numbers that f16 cannot represent: choose --format gguf:bf16"
        raise ConfigurationError(msg)
    return quantized


def _remarks(entries: Sequence[_FileTensor], weights: str) -> Sequence[str]:
    others = [entry for entry in entries if entry.kind == "F16" and weights != "f16"]
    if not others:
        return ()
    return (
        f"{len(others)} matrices, such as {others[0].source}, are stored as f16: their rows do not fill blocks of 32",
    )


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
    architecture = _ARCHITECTURES.get(config.model_type)
    if architecture is None:
        names = ", ".join(_ARCHITECTURES)
        msg = f"a model of the type {config.model_type} cannot be written as GGUF: the types that can are {names}"
        raise ConfigurationError(msg)
    for field, values in architecture.demands.items():
        if (value := getattr(config, field, values[0])) not in values:
            wanted = " or ".join(map(str, values))
            msg = (
                f"{field} is {value}, but llama.cpp computes models of the type {config.model_type} with {wanted} only"
            )
            raise ConfigurationError(msg)
    _check_window(config)
    return architecture


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
