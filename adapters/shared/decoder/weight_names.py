"""Converts a decoder's weights to the names and layout of Hugging Face, and back.

The network's own names are those of ``LlamaForCausalLM``; other classes rename them, and GPT-2 also keeps matrices
of layers transposed, and those of query, key and value as one.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "starcoder2": {"mlp.up_proj.": "mlp.c_fc.", "mlp.down_proj.": "mlp.c_proj."},
        "gpt2": {
            "model.embed_tokens.": "transformer.wte.",
            "model.embed_positions.": "transformer.wpe.",
            "model.layers.": "transformer.h.",
            "model.norm.": "transformer.ln_f.",
            ".input_layernorm.": ".ln_1.",
            ".self_attn.o_proj.": ".attn.c_proj.",
            ".post_attention_layernorm.": ".ln_2.",
            ".mlp.up_proj.": ".mlp.c_fc.",
            ".mlp.down_proj.": ".mlp.c_proj.",
        },
    }
)
_JOINT = ".attn.c_attn."
_PARTS = tuple(f".self_attn.{part}_proj." for part in "qkv")
_TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
_OF_BASE = re.compile(r"(wte|wpe|h|ln_f)\.")
# entries of older files besides weights; each follows from the configuration
_NO_WEIGHTS = re.compile(r"(\.rotary_emb\.inv_freq|\.attn\.(bias|masked_bias))$")


def to_huggingface(model_type: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors``, which have the network's own names, in the names of Hugging Face's ``model_type``.

    Dtypes stay. Shapes stay too, except those of matrices that GPT-2 stores transposed or joined.
    """
    if model_type != "gpt2":
        return {_renamed(name, _NAMES.get(model_type, {})): tensor for name, tensor in tensors.items()}
    theirs: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        renamed = _renamed(name, _NAMES["gpt2"])
        if _PARTS[0] in renamed:
            joint = torch.cat([tensors[name.replace(_PARTS[0], part)] for part in _PARTS])
            theirs[renamed.replace(_PARTS[0], _JOINT)] = joint
        elif not any(part in renamed for part in _PARTS):
            theirs[renamed] = tensor
    return _transposed(theirs)


def from_huggingface(model_type: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` of a Hugging Face model of ``model_type`` in the network's own names.

    Dtypes stay. Shapes stay too, except those of matrices that GPT-2 stores transposed or joined. Each tensor is
    converted by itself, so they may be given one by one.
    """
    tensors = {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHTS.search(name)}
    back = {theirs: ours for ours, theirs in _NAMES.get(model_type, {}).items()}
    if model_type != "gpt2":
        return {_renamed(name, back): tensor for name, tensor in tensors.items()}
    # the first published files are those of the base model
    tensors = {f"transformer.{name}" if _OF_BASE.match(name) else name: each for name, each in tensors.items()}
    ours: dict[str, Tensor] = {}
    for name, tensor in _transposed(tensors).items():
        renamed = _renamed(name, back)
        if _JOINT in renamed:
            thirds = zip(_PARTS, tensor.chunk(3), strict=True)
            ours |= {renamed.replace(_JOINT, part): third.contiguous() for part, third in thirds}
        else:
            ours[renamed] = tensor
    return ours


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def _transposed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.t().contiguous() if _TRANSPOSED.search(name) else tensor for name, tensor in tensors.items()}
