"""The configuration of a decoder network, and its form in a config.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.decoder.huggingface_config import OWN_TYPE, family_of, fields_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.adapters.shared.decoder.decoder_shape import DecoderShape, Dropout

_TENSOR_PLAN: Mapping[str, str] = MappingProxyType(
    {f"layers.*.{name}_proj": "colwise" for name in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")}
    | {f"layers.*.{name}_proj": "rowwise" for name in ("self_attn.o", "mlp.down")}
)


@final
@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The shape, with the attributes that configurations of Hugging Face models have."""

    shape: DecoderShape
    dropout: Dropout
    end_of_text: int

    @property
    def model_type(self) -> str:
        """Return the Hugging Face name of the equivalent models, or ``holdfast_decoder``."""
        family = family_of(self.shape)
        return OWN_TYPE if family is None else family.model_type

    @property
    def vocab_size(self) -> int:
        """Return the number of embedded ids."""
        return self.shape.vocabulary_size

    @property
    def hidden_size(self) -> int:
        """Return the width of the hidden states."""
        return self.shape.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        """Return the number of layers."""
        return self.shape.num_layers

    @property
    def max_position_embeddings(self) -> int:
        """Return the number of positions."""
        return self.shape.positions.longest

    @property
    def tie_word_embeddings(self) -> bool:
        """Return whether embedding and output matrix are the same."""
        return self.shape.tied

    @property
    def num_attention_heads(self) -> int:
        """Return the number of query heads."""
        return self.shape.attention.num_heads

    @property
    def num_key_value_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.shape.attention.num_key_value_heads

    @property
    def intermediate_size(self) -> int:
        """Return the number of neurons of a feed-forward network."""
        return self.shape.mlp.width

    @property
    def base_model_tp_plan(self) -> Mapping[str, str]:
        """Return the plan for tensor parallelism, in the form of Hugging Face's configurations."""
        return _TENSOR_PLAN

    def to_json_string(self) -> str:
        """Return the text of config.json, in Hugging Face's form if Hugging Face has an equivalent model."""
        family = family_of(self.shape)
        if family is None:
            described = {**fields_of(self.shape), "dropout": asdict(self.dropout)}
        else:
            described = {"architectures": [family.architecture], **family.describe(self.shape, self.dropout)}
        described |= {"model_type": self.model_type, "dtype": "float32"}
        described |= {"bos_token_id": self.end_of_text, "eos_token_id": self.end_of_text, "pad_token_id": None}
        return json.dumps(described, indent=2, sort_keys=True) + "\n"
