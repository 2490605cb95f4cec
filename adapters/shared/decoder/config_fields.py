"""A decoder's shape as flat fields, named as in a Llama's config.json where that has a name for them."""

from __future__ import annotations

from dataclasses import asdict
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.adapters.shared.decoder.decoder_shape import (
    AttentionShape,
    DecoderShape,
    Dropout,
    MlpShape,
    NormShape,
    PositionShape,
    RopeScaling,
    require_count,
)
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Value = TypeVar("Value", Dropout, RopeScaling)

_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "num_key_value_heads": None,
        "head_dim": None,
        "max_position_embeddings": 2048,
        "activation": "silu",
        "gated": True,
        "norm": "rmsnorm",
        "norm_epsilon": 1e-6,
        "positions": "rope",
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
)


def shape_of(given: Mapping[str, Any]) -> DecoderShape:
    """Return the shape that flat fields describe; omitted fields are those of a Llama.

    Raises ``ConfigurationError`` if a field is unknown, missing or inconsistent with the others.
    """
    _check_known(given, {*_REQUIRED, *_DEFAULTS}, "model")
    if missing := [name for name in _REQUIRED if given.get(name) is None]:
        msg = f"model.{missing[0]} is missing: a decoder needs {', '.join(_REQUIRED)}"
        raise ConfigurationError(msg)
    fields = {**_DEFAULTS, **given}
    scaling = fields["rope_scaling"]
    return DecoderShape(
        vocabulary_size=fields["vocab_size"],
        hidden_size=fields["hidden_size"],
        num_layers=fields["num_hidden_layers"],
        attention=_attention_of(fields),
        mlp=MlpShape(fields["intermediate_size"], fields["activation"], fields["gated"], fields["mlp_bias"]),
        norm=NormShape(fields["norm"], fields["norm_epsilon"]),
        positions=PositionShape(
            fields["positions"],
            fields["max_position_embeddings"],
            fields["rope_theta"],
            None if scaling is None else value_of(RopeScaling, scaling, "model.rope_scaling"),
        ),
        tied=fields["tie_word_embeddings"],
    )


def fields_of(shape: DecoderShape) -> dict[str, Any]:
    """Return all flat fields of ``shape``, of which ``shape_of`` makes an equal shape."""
    scaling = shape.positions.scaling
    return {
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp.width,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.attention.num_heads,
        "num_key_value_heads": shape.attention.num_key_value_heads,
        "head_dim": shape.attention.head_size,
        "max_position_embeddings": shape.positions.longest,
        "activation": shape.mlp.activation,
        "gated": shape.mlp.gated,
        "norm": shape.norm.kind,
        "norm_epsilon": shape.norm.epsilon,
        "positions": shape.positions.kind,
        "rope_theta": shape.positions.theta,
        "rope_scaling": None if scaling is None else asdict(scaling),
        "attention_bias": shape.attention.bias,
        "mlp_bias": shape.mlp.bias,
        "tie_word_embeddings": shape.tied,
    }


def value_of(kind: type[Value], given: Mapping[str, Any], where: str) -> Value:
    """Return the value that ``given`` describes; raises ``ConfigurationError`` for unknown or missing fields."""
    names = list(kind.__dataclass_fields__)
    _check_known(given, names, where)
    try:
        return kind(**given)
    except TypeError as error:
        msg = f"{where} lacks a field: it needs those of {', '.join(names)} that have no default"
        raise ConfigurationError(msg) from error


def _attention_of(fields: Mapping[str, Any]) -> AttentionShape:
    heads, hidden_size, head_size = fields["num_attention_heads"], fields["hidden_size"], fields["head_dim"]
    require_count("hidden_size", hidden_size)
    require_count("num_attention_heads", heads)
    if head_size is None:
        if hidden_size % heads:
            msg = f"model.hidden_size, {hidden_size}, is not a multiple of model.num_attention_heads, {heads}"
            raise ConfigurationError(msg + ": change one or set model.head_dim")
        head_size = hidden_size // heads
    shared = fields["num_key_value_heads"]
    return AttentionShape(heads, heads if shared is None else shared, head_size, fields["attention_bias"])


def _check_known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, list(known), n=1)
            msg = f"{where} has no field {name}" + (f": did you mean {near[0]}?" if near else "")
            raise ConfigurationError(msg)
