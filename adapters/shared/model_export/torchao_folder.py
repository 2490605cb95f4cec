"""Writes a model folder with the quantized weights of torchao, and reads it back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from transformers import GPTBigCodeConfig

from holdfast.adapters.shared.model_export.whole_model import WholeModel, silenced
from holdfast.adapters.shared.modeling.generation_settings import config_text
from holdfast.adapters.shared.modeling.network_layers import linear_layers
from holdfast.adapters.shared.tensor_state.file_parts import TextPart, write_parts
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

_GROUP = 32
_REMARKS = {"int4": ("the numbers of 4 bits are stored one in a byte: torchao packs them on GPUs only",)}


def torchao_package() -> Any:
    """Return the functions of torchao; raises ``ConfigurationError`` if it is not installed."""
    try:
        with silenced():
            return import_module("torchao.quantization")
    except ImportError as error:
        msg = 'quantization by torchao needs another package: pip install "holdfast-lm[torchao]"'
        raise ConfigurationError(msg) from error


def write_torchao(model: WholeModel, source: Path, folder: Path, weights: str) -> Sequence[str]:
    """Write ``model`` into ``folder`` with linear layers, but not the head, of the type ``weights``; return remarks.

    ``source`` is an empty folder for the unquantized model. Raises ``ConfigurationError`` and ``OSError``.
    """
    from transformers import AutoModelForCausalLM, TorchAoConfig

    torchao = torchao_package()
    linear = with_linear_layers(model)
    if weights == "int4":
        _check_groups(linear.config)
    described = TextPart("config.json", linear.config.to_json_string(use_diff=False))
    write_parts((described, TensorsPart("model.safetensors", linear.tensors, {})), source)
    with silenced():
        network = AutoModelForCausalLM.from_pretrained(
            str(source),
            quantization_config=TorchAoConfig(_kind(torchao, weights)),
            dtype=torch.bfloat16,
            trust_remote_code=False,
        )
        network.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(config_text(config.read_text(encoding="utf-8")), encoding="utf-8")
    return _REMARKS.get(weights, ())


def read_torchao(folder: Path) -> Any:
    """Return the model in ``folder`` as transformers reads it; raises ``StateError`` if weights are missing."""
    from transformers import AutoModelForCausalLM

    with silenced():
        network, report = AutoModelForCausalLM.from_pretrained(
            str(folder), trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(report["missing_keys"]):
        msg = f"{folder} lacks {len(missing)} of the model's tensors, such as {missing[0]}"
        raise StateError(msg)
    return network


def _check_groups(config: Any) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    layers: dict[str, Any] = linear_layers(network)
    for name, layer in layers.items():
        if layer.in_features % _GROUP:
            msg = f"the layer {name} has {layer.in_features} inputs, no multiple of {_GROUP}: choose torchao:int8"
            raise ConfigurationError(msg)


def _kind(torchao: Any, weights: str) -> Any:
    if weights == "int8":
        return torchao.Int8WeightOnlyConfig()
    if weights == "int4":  # of torchao's kinds the only one that needs no GPU
        return torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(_GROUP))  # type: ignore[attr-defined]
    return torchao.Float8WeightOnlyConfig()


_SAME = (
    *("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "activation_function"),
    *("resid_pdrop", "embd_pdrop", "attn_pdrop", "layer_norm_epsilon", "tie_word_embeddings"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
_TRANSPOSED = (".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight")
_JOINT = ".attn.c_attn."


def with_linear_layers(model: WholeModel) -> WholeModel:
    """Return ``model``, and if it is a GPT-2 the equal model of the type gpt_bigcode.

    Raises ``ConfigurationError`` if it is a GPT-2 with settings that this type does not have.
    """
    config = model.config
    if config.model_type != "gpt2":
        return model
    if config.scale_attn_by_inverse_layer_idx or config.add_cross_attention:
        msg = "a GPT-2 with scale_attn_by_inverse_layer_idx or add_cross_attention cannot be quantized by torchao"
        raise ConfigurationError(msg)
    fields = {name: getattr(config, name) for name in _SAME}
    linear = GPTBigCodeConfig(**fields, multi_query=False, scale_attn_weights=config.scale_attn_weights)
    linear.architectures = ["GPTBigCodeForCausalLM"]
    return WholeModel(linear, {name: _converted(name, each, config.n_head) for name, each in model.tensors.items()})


def _converted(name: str, tensor: Tensor, num_heads: int) -> Tensor:
    matrix = tensor.t() if name.endswith(_TRANSPOSED) else tensor
    if _JOINT in name:
        parts = matrix.reshape(3, num_heads, -1, *matrix.shape[1:])
        matrix = parts.transpose(0, 1).reshape(matrix.shape)
    return matrix.contiguous()
