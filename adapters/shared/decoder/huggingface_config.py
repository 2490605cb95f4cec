"""Converts between a decoder's shape and the configuration of the equivalent Hugging Face model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, final

from typing_extensions import override

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

OWN_TYPE = "holdfast_decoder"

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
_SAME_ACTIVATIONS = {"gelu_new": "gelu_tanh", "swish": "silu"}
_SAME_NAMES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "tie_word_embeddings"),
)
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class Family(ABC):
    """A model class of Hugging Face; ``fixed`` are the flat fields that its models cannot choose."""

    model_type: str
    architecture: str

    @abstractmethod
    def fixed(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields that this class fixes, given the other fields."""

    @abstractmethod
    def describe(self, shape: DecoderShape, dropout: Dropout) -> dict[str, Any]:
        """Return the fields of config.json, without those that all families share."""

    @abstractmethod
    def read(self, config: Mapping[str, Any]) -> tuple[DecoderShape, Dropout]:
        """Return the shape in ``config``, defaults included; raises ``ConfigurationError`` if it is not supported."""

    def obstacles(self, shape: DecoderShape) -> dict[str, Any]:
        """Return the fields in which ``shape`` differs from all models of this class, with the models' values."""
        fields = fields_of(shape)
        return {name: value for name, value in self.fixed(fields).items() if fields[name] != value}


@final
class LlamaFamily(Family):
    """``LlamaForCausalLM``; its only dropout is that of attention."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"

    @override
    def fixed(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        fixed = {"positions": "rope", "norm": "rmsnorm", "gated": True}
        # transformers requires it even if head_dim is given
        is_even = fields["hidden_size"] % fields["num_attention_heads"] == 0
        return fixed if is_even else fixed | {"head_dim": "hidden_size / num_attention_heads"}

    @override
    def describe(self, shape: DecoderShape, dropout: Dropout) -> dict[str, Any]:
        fields = fields_of(shape)
        return {
            **{name: fields[name] for name in (*_SAME_NAMES, "head_dim", "attention_bias", "mlp_bias")},
            "hidden_act": _ACTIVATIONS[fields["activation"]],
            "rms_norm_eps": fields["norm_epsilon"],
            "rope_parameters": _rope_parameters(fields),
            "attention_dropout": dropout.attention,
        }

    @override
    def read(self, config: Mapping[str, Any]) -> tuple[DecoderShape, Dropout]:
        fields = {name: config[name] for name in (*_SAME_NAMES, "head_dim", "attention_bias", "mlp_bias")}
        fields |= {"norm": "rmsnorm", "norm_epsilon": config["rms_norm_eps"], "gated": True}
        fields |= {"activation": _activation_of(config["hidden_act"])} | _rope_fields(config["rope_parameters"])
        return shape_of(fields), Dropout(attention=config["attention_dropout"])


@final
class Starcoder2Family(Family):
    """``Starcoder2ForCausalLM``: rotary positions with layer norms and a plain MLP."""

    model_type = "starcoder2"
    architecture = "Starcoder2ForCausalLM"

    @override
    def fixed(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        fixed = {"positions": "rope", "norm": "layernorm", "gated": False}
        return fixed | {"head_dim": _even_head_size(fields), "mlp_bias": fields["attention_bias"]}

    @override
    def describe(self, shape: DecoderShape, dropout: Dropout) -> dict[str, Any]:
        fields = fields_of(shape)
        return {
            **{name: fields[name] for name in (*_SAME_NAMES, "norm_epsilon")},
            "hidden_act": _ACTIVATIONS[fields["activation"]],
            "use_bias": fields["attention_bias"],
            "rope_parameters": _rope_parameters(fields),
            "sliding_window": None,
            "embedding_dropout": dropout.embedding,
            "attention_dropout": dropout.attention,
            "residual_dropout": dropout.residual,
        }

    @override
    def read(self, config: Mapping[str, Any]) -> tuple[DecoderShape, Dropout]:
        _check_fields(config, {"sliding_window": None})
        fields = {name: config[name] for name in (*_SAME_NAMES, "norm_epsilon")}
        fields |= {"norm": "layernorm", "gated": False}
        fields |= {"attention_bias": config["use_bias"], "mlp_bias": config["use_bias"]}
        fields |= {"activation": _activation_of(config["hidden_act"])} | _rope_fields(config["rope_parameters"])
        shares = {name: config[f"{name}_dropout"] for name in ("embedding", "attention", "residual")}
        return shape_of(fields), Dropout(**shares)


@final
class Gpt2Family(Family):
    """``GPT2LMHeadModel``."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"

    @override
    def fixed(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        fixed = {"positions": "learned", "norm": "layernorm", "gated": False}
        fixed |= {"attention_bias": True, "mlp_bias": True}
        return fixed | {"head_dim": _even_head_size(fields), "num_key_value_heads": fields["num_attention_heads"]}

    @override
    def describe(self, shape: DecoderShape, dropout: Dropout) -> dict[str, Any]:
        activation = shape.mlp.activation
        return {
            "vocab_size": shape.vocabulary_size,
            "n_embd": shape.hidden_size,
            "n_layer": shape.num_layers,
            "n_head": shape.attention.num_heads,
            "n_positions": shape.positions.longest,
            "n_inner": shape.mlp.width,
            "activation_function": "gelu_new" if activation == "gelu_tanh" else _ACTIVATIONS[activation],
            "layer_norm_epsilon": shape.norm.epsilon,
            "tie_word_embeddings": shape.tied,
            "embd_pdrop": dropout.embedding,
            "attn_pdrop": dropout.attention,
            "resid_pdrop": dropout.residual,
        }

    @override
    def read(self, config: Mapping[str, Any]) -> tuple[DecoderShape, Dropout]:
        expected = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
        _check_fields(config, expected)
        fields = {
            "vocab_size": config["vocab_size"],
            "hidden_size": config["n_embd"],
            "intermediate_size": 4 * config["n_embd"] if config["n_inner"] is None else config["n_inner"],
            "num_hidden_layers": config["n_layer"],
            "num_attention_heads": config["n_head"],
            "max_position_embeddings": config["n_positions"],
            "activation": _activation_of(config["activation_function"]),
            "norm_epsilon": config["layer_norm_epsilon"],
            "tie_word_embeddings": config["tie_word_embeddings"],
        }
        fields |= {"positions": "learned", "norm": "layernorm", "gated": False}
        fields |= {"attention_bias": True, "mlp_bias": True}
        return shape_of(fields), Dropout(config["embd_pdrop"], config["attn_pdrop"], config["resid_pdrop"])


FAMILIES = (LlamaFamily(), Starcoder2Family(), Gpt2Family())


def family_of(shape: DecoderShape) -> Family | None:
    """Return the Hugging Face class that computes the same as ``shape``, None if there is none."""
    return next((family for family in FAMILIES if not family.obstacles(shape)), None)


def check_exportable(shape: DecoderShape) -> None:
    """Raise ``ConfigurationError`` with the conflicting settings if no class of Hugging Face computes ``shape``."""
    if (obstacle := obstacle_to_export(shape)) is not None:
        raise ConfigurationError(obstacle)


def obstacle_to_export(shape: DecoderShape) -> str | None:
    """Return a sentence with the conflicting settings if no class of Hugging Face computes ``shape``, else None."""
    by_family = [(family, family.obstacles(shape)) for family in FAMILIES]
    nearest, obstacles = min(by_family, key=lambda pair: (len(pair[1]), "positions" in pair[1]))
    if not obstacles:
        return None
    wanted = ", ".join(f"model.{name}={str(value).lower()}" for name, value in obstacles.items())
    return f"transformers has no class for this decoder: the nearest, {nearest.architecture}, needs {wanted}"


def _even_head_size(fields: Mapping[str, Any]) -> object:
    whole, rest = divmod(fields["hidden_size"], fields["num_attention_heads"])
    return "hidden_size / num_attention_heads" if rest else whole


def _activation_of(name: str) -> str:
    activations = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | _SAME_ACTIVATIONS
    if name not in activations:
        msg = f"the model folder's activation is {name}, but a decoder has only {', '.join(sorted(activations))}"
        raise ConfigurationError(msg)
    return activations[name]


def _check_fields(config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        if config[name] != value:
            msg = f"the model folder's {name} is {config[name]}, which a decoder cannot be: use model.kind huggingface"
            raise ConfigurationError(msg)


def _rope_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    scaling = fields["rope_scaling"]
    rope = {"rope_type": "default" if scaling is None else scaling["kind"], "rope_theta": fields["rope_theta"]}
    names = {"default": (), "linear": ("factor",), "llama3": _SCALING}[rope["rope_type"]]
    return rope | {name: scaling[name] for name in names}


def _rope_fields(rope: Mapping[str, Any]) -> dict[str, Any]:
    kind = rope["rope_type"]
    if kind not in ("default", "linear", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        msg = f"the model folder's rope_parameters are {kind}, but a decoder has only whole default, linear or llama3"
        raise ConfigurationError(msg)
    scaling = {name: rope[name] for name in _SCALING if name in rope}
    return {"rope_theta": rope["rope_theta"], "rope_scaling": None if kind == "default" else {"kind": kind, **scaling}}


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
