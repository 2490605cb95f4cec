"""Checks a Hugging Face model and reports a fault in one sentence, before the first step."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from holdfast.adapters.shared.network.hub import refusal
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedConfig, PreTrainedModel

_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def check_known_fields(fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a field that the model does not have: transformers would store and ignore it."""
    _check_model_type(fields["model_type"])
    default = AutoConfig.for_model(fields["model_type"])
    known = {*default.to_dict(), *default.attribute_map, *_known_to_class(default)}
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            msg = f"it has no field {name}" + (f": did you mean {near[0]}?" if near else "")
            raise ValueError(msg)
        if name in _ACTIVATIONS and isinstance(fields[name], str) and fields[name] not in ACT2FN:
            raise ValueError(_unknown_activation(name, fields[name]))
    _check_head_width(fields, default)


def check_numbers(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` for numbers with which transformers would fail in the first step, or train no layer."""
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers < 1:
        msg = f"num_hidden_layers is {layers}: a model needs at least one layer"
        raise ValueError(msg)
    for name, value in config.to_dict().items():
        is_share = "drop" in name and isinstance(value, int | float) and not isinstance(value, bool)
        if is_share and not 0 <= value <= 1:
            msg = f"{name} is {value}: a probability is from 0 to 1"
            raise ValueError(msg)


def check_head_counts(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` if query heads cannot share keys evenly: transformers would fail in the first step."""
    heads, shared = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        msg = f"num_attention_heads, {heads}, is not a multiple of num_key_value_heads, {shared}"
        raise ValueError(msg)


def check_task(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` for a model that transformers has, but not as a causal language model."""
    kind = config.model_type
    has_own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not has_own_code:
        msg = f"a {kind} is not a causal language model: choose one that predicts the next token, such as llama or gpt2"
        raise ValueError(msg)


def check_sizes(network: PreTrainedModel, *, vocabulary_size: int, sequence_length: int | None) -> None:
    """Raise ``ConfigurationError`` if the tokenizer has more ids or rows have more tokens than the model supports."""
    _check_vocabulary_size(network.get_input_embeddings().num_embeddings, vocabulary_size)
    check_length(network.config, sequence_length)


def check_vocabulary(config: PreTrainedConfig, vocabulary_size: int) -> None:
    """Raise ``ConfigurationError`` if the tokenizer has more ids than ``config`` has."""
    rows = getattr(config.get_text_config(), "vocab_size", None)
    if isinstance(rows, int):
        _check_vocabulary_size(rows, vocabulary_size)


def check_length(config: PreTrainedConfig, sequence_length: int | None) -> None:
    """Raise ``ConfigurationError`` if rows have more tokens than the model has positions."""
    longest = longest_row(config)
    if longest is not None and sequence_length is not None and sequence_length > longest:
        msg = f"data.sequence_length is {sequence_length} but the model has {longest} positions: shorten it"
        raise ConfigurationError(msg)


def longest_row(config: PreTrainedConfig) -> int | None:
    """Return the number of positions of the model, None if it has no limit."""
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def explain(error: Exception, path: str | None) -> str:
    """Return in one line why the model at ``path`` could not be built; the hub's refusals are reworded."""
    if refused := refusal(error, path):
        return refused
    while isinstance(error, StrictDataclassError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # whose text lacks the names of transformers' validators
    is_word = isinstance(error, LookupError) or not str(error)  # such as KeyError("nope")
    return shorten(f"{type(error).__name__}: {error}" if is_word else str(error), width=300)


def _unknown_activation(name: str, value: str) -> str:
    if (plain := _GATED.get(value.lower())) is not None:
        return f"{value} is {name}={plain} in a model whose MLP has a gate, such as llama: set that"
    near = get_close_matches(value.lower(), ACT2FN, n=1)
    return f"transformers has no {name} {value}: {f'did you mean {near[0]}?' if near else 'choose silu or gelu'}"


def _check_vocabulary_size(rows: int, vocabulary_size: int) -> None:
    if rows < vocabulary_size:
        msg = f"the tokenizer has {vocabulary_size} ids but the model embeds {rows}: use the model's own tokenizer"
        raise ConfigurationError(msg)


def _check_model_type(kind: str) -> None:
    if kind not in CONFIG_MAPPING:
        near = get_close_matches(kind, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, n=1)
        advice = f"did you mean {near[0]}?" if near else "choose one that it has, such as llama or gpt2"
        msg = f"transformers has no model_type {kind}: {advice}"
        raise ValueError(msg)


def _check_head_width(fields: Mapping[str, Any], default: PreTrainedConfig) -> None:
    names = {name: default.attribute_map.get(name, name) for name in ("hidden_size", "num_attention_heads")}
    width, heads = (fields.get(name, fields.get(own, getattr(default, own, None))) for name, own in names.items())
    if "head_dim" in fields or not (isinstance(width, int) and isinstance(heads, int)):
        return
    if heads < 1 or width % heads:
        own_width, own_heads = names.values()
        msg = f"{own_width}, {width}, is not a multiple of {own_heads}, {heads}: change one of them in model.config"
        raise ValueError(msg)


def _known_to_class(config: PreTrainedConfig) -> Iterator[str]:
    # such as hybrid_override_pattern of Nemotron-H, which is read and becomes another field
    kind = type(config)
    yield from (name for name in dir(kind) if isinstance(getattr(kind, name, None), property) and name[0] != "_")
