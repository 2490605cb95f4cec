"""The shape of a decoder, as validated values."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.domain.errors import ConfigurationError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The scaling of rotary frequencies for more positions than the model was trained with.

    ``linear`` divides all of them by ``factor`` (Chen et al., 2023, arXiv:2306.15595). ``llama3`` divides the
    frequencies that make at most ``low_freq_factor`` turns within the original positions, and keeps those that make at
    least ``high_freq_factor`` turns. Between the two it interpolates (Llama 3.1, as transformers computes it).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        _require_one_of("rope_scaling.kind", self.kind, "linear", "llama3")
        _require(_is_number(self.factor) and self.factor >= 1, "rope_scaling.factor", self.factor, "at least 1")
        numbers = (self.low_freq_factor, self.high_freq_factor)
        if not all(map(_is_number, numbers)) or not 0 < self.low_freq_factor < self.high_freq_factor:
            msg = f"model.rope_scaling.low_freq_factor and high_freq_factor are {numbers}: make 0 < low < high"
            raise ConfigurationError(msg)
        require_count("rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings)


@dataclass(frozen=True, slots=True)
class PositionShape:
    """The kind of positions: ``rope`` rotates queries and keys (Su et al., 2021), ``learned`` adds a vector."""

    kind: str
    longest: int
    theta: float = 10_000.0
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        _require_one_of("positions", self.kind, "rope", "learned")
        require_count("max_position_embeddings", self.longest)
        _require(_is_number(self.theta) and self.theta > 1, "rope_theta", self.theta, "above 1")
        if self.kind == "learned" and self.scaling is not None:
            msg = "model.rope_scaling stretches rotary positions, but model.positions is learned: set it to null"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of ``head_size`` numbers; several query heads may share a key and value head (Ainslie et al., 2023)."""

    num_heads: int
    num_key_value_heads: int
    head_size: int
    bias: bool = False

    def __post_init__(self) -> None:
        require_count("num_attention_heads", self.num_heads)
        require_count("num_key_value_heads", self.num_key_value_heads)
        require_count("head_dim", self.head_size)
        _require_flag("attention_bias", self.bias)
        if self.num_heads % self.num_key_value_heads:
            msg = (
                f"model.num_attention_heads, {self.num_heads}, is not a multiple of "
                f"model.num_key_value_heads, {self.num_key_value_heads}: use as many query heads for each key head"
            )
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class MlpShape:
    """Two matrices around an activation, or three if it is ``gated`` (SwiGLU with silu; Shazeer, 2020)."""

    width: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        require_count("intermediate_size", self.width)
        _require_one_of("activation", self.activation, *ACTIVATIONS)
        _require_flag("gated", self.gated)
        _require_flag("mlp_bias", self.bias)


@dataclass(frozen=True, slots=True)
class NormShape:
    """``rmsnorm`` has a scale, ``layernorm`` a scale and a shift; ``epsilon`` is added to the mean square."""

    kind: str = "rmsnorm"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        _require_one_of("norm", self.kind, "rmsnorm", "layernorm")
        _require(_is_number(self.epsilon) and self.epsilon > 0, "norm_epsilon", self.epsilon, "above 0")


@dataclass(frozen=True, slots=True)
class Dropout:
    """Dropout rates after the embeddings, in the attention weights, and before each residual addition."""

    embedding: float = 0.0
    attention: float = 0.0
    residual: float = 0.0

    def __post_init__(self) -> None:
        for name in ("embedding", "attention", "residual"):
            share = getattr(self, name)
            _require(_is_number(share) and 0 <= share < 1, f"dropout.{name}", share, "from 0 to below 1")


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The complete shape of a decoder and its computation; ``tied`` uses the embedding as output matrix."""

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    attention: AttentionShape
    mlp: MlpShape
    norm: NormShape
    positions: PositionShape
    tied: bool = False

    def __post_init__(self) -> None:
        require_count("vocab_size", self.vocabulary_size)
        require_count("hidden_size", self.hidden_size)
        require_count("num_hidden_layers", self.num_layers)
        _require_flag("tie_word_embeddings", self.tied)
        if self.positions.kind == "rope" and self.attention.head_size % 2:
            msg = f"model.head_dim is {self.attention.head_size}, but rotary positions turn pairs: make it even"
            raise ConfigurationError(msg)


def require_count(name: str, value: object) -> None:
    """Raise ``ConfigurationError`` unless ``value`` of the setting ``name`` is a whole number of at least 1."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    _require(is_count, name, value, "a whole number, at least 1")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require_flag(name: str, value: object) -> None:
    _require(isinstance(value, bool), name, value, "true or false")


def _require_one_of(name: str, value: object, *allowed: str) -> None:
    _require(value in allowed, name, value, f"one of {', '.join(allowed)}")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:  # noqa: FBT001  an assertion's condition
    if not holds:
        msg = f"model.{name} is {value!r}: make it {wanted}"
        raise ConfigurationError(msg)
