"""GPT-2 with torch's linear layers, for programs that quantize only these.

transformers keeps the matrices of GPT-2 in layers of its own. ``GPTBigCodeForCausalLM`` with a key head for each query
head computes the same with ``torch.nn.Linear``; there the rows of query, key and value follow each other head by head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import GPTBigCodeConfig

from holdfast.adapters.shared.model_export.whole_model import WholeModel
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

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
