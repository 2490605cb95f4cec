"""Builds any causal model of Hugging Face transformers, from its configuration or from weights."""

from __future__ import annotations

import os
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, final

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import CONFIG_NAME, cached_file
from typing_extensions import override

from holdfast.adapters.model_factory.deferred_huggingface import build_deferred
from holdfast.adapters.model_factory.loaded_weights import (
    Trust,
    check_types_in,
    describe_ties,
    describe_unloaded,
    pickled_weights,
)
from holdfast.adapters.model_factory.model_folder import check_model_folder, weights_left_aside
from holdfast.adapters.shared.modeling.activation_checkpointing import checkpoint_model
from holdfast.adapters.shared.modeling.attention import VARLEN, offer_varlen
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.document_isolation import probe_isolation
from holdfast.adapters.shared.modeling.generation_settings import check_positions, read_generation_settings
from holdfast.adapters.shared.modeling.loss_selection import choose_loss
from holdfast.adapters.shared.network.hub import reached, refusal
from holdfast.adapters.shared.network.hub_names import guess, names_folder
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.model_factory import ModelFactory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedConfig, PreTrainedModel

    from holdfast.domain.training.memory_fit import CheckpointBudget

_PROBED = 48  # tokens


@final
class HuggingfaceModelFactory(ModelFactory[CausalLanguageModel]):
    """Builds ``AutoModelForCausalLM`` from a local folder or hub name, or from a configuration.

    ``path`` with ``pretrained`` loads safetensors weights, without it only the configuration there; with no path,
    ``config`` (``model_type`` and its fields) describes a new model. Code that comes with a model is run, and weights
    that are a pickle are opened, only if ``trusts`` names exactly its ``path``. A token for the hub is taken from
    ``HF_TOKEN`` only. ``attention`` names kinds of attention, joined by commas. The first that the model supports and
    that isolates the documents of a row is used; auto is sdpa, or eager if the model does not support sdpa.
    ``sequence_length`` is the longest row that the model will see, ``gradient_checkpointing`` a budget or a policy of
    ``holdfast.adapters.shared.modeling.activation_checkpointing``.
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        pretrained: bool = True,
        config: Mapping[str, Any] | None = None,
        attention: str = "auto",
        sequence_length: int | None = None,
        trusts: Trust = Trust(),  # noqa: B008  a value
        gradient_checkpointing: str | CheckpointBudget = "none",
    ) -> None:
        self._path = path
        self._pretrained = pretrained and path is not None
        self._config = dict(config or {})
        self._attention = ("sdpa", "eager") if attention == "auto" else tuple(attention.split(","))
        self._sequence_length = sequence_length
        self._trusts_code = trusts.code_of is not None and trusts.code_of == path
        self._pickle_of = trusts.pickle_of
        self._checkpointing = gradient_checkpointing
        # False: the hub's client must not use a token stored on this machine
        self._revision = revision
        self._source = {"revision": revision, "token": os.environ.get("HF_TOKEN") or False}
        self._awaits_weights = False
        self._defers_weights = False

    @override
    def await_weights(self) -> None:
        """Do not read the weights at ``path`` from now on, as all of them are restored from a checkpoint."""
        self._awaits_weights = True

    @override
    def defer_weights(self) -> None:
        """Defer the weights of models of the types ``DEFERRED``, new or in a local folder; others are built whole."""
        self._defers_weights = True

    @override
    def build(self, *, vocabulary_size: int, end_of_text: int, seed: int) -> CausalLanguageModel:
        offer_varlen()
        with self._refusing():
            config = self._load_config(vocabulary_size, end_of_text)
            model = self._with_attention(config, vocabulary_size, seed)
        model.network.config.architectures = [type(model.network).__name__]
        checkpoint_model(model, self._checkpointing, attention=model.network.config._attn_implementation)  # noqa: SLF001  no public name
        return model

    @override
    def check(self, *, vocabulary_size: int | None = None) -> None:
        with self._refusing():
            config = self._load_config(vocabulary_size, end_of_text=0)
        check_length(config, self._sequence_length)
        if vocabulary_size is not None:
            check_vocabulary(config, vocabulary_size)

    @override
    def longest_row(self) -> int | None:
        with self._refusing():
            return longest_row(self._load_config(None, end_of_text=0))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except ConfigurationError:
            raise
        except Exception as error:  # errors of models over a configuration have no common type
            name = self._path or self._config.get("model_type")
            msg = f"model {name} cannot be built: {explain(error, self._path)}"
            raise ConfigurationError(msg + guess(self._path or "")) from error

    @override
    def count_parameters(self, *, vocabulary_size: int, end_of_text: int) -> int | None:
        try:
            config = self._load_config(vocabulary_size, end_of_text)
            with torch.device("meta"), torch.random.fork_rng(devices=[]):
                network = self._from_scratch(config, "eager")
        except Exception:  # noqa: BLE001 ``build`` reports all faults of the model
            return None
        return sum(int(parameter.numel()) for parameter in network.parameters())

    def _load_config(self, vocabulary_size: int | None, end_of_text: int) -> PreTrainedConfig:
        sizes = {} if vocabulary_size is None else {"vocab_size": vocabulary_size}
        if self._path is not None:
            if names_folder(self._path) and not Path(self._path).is_dir():
                msg = "there is no such folder: set model.path to a model folder or a hub name"
                raise ValueError(msg)
            if Path(self._path).is_dir():
                check_model_folder(Path(self._path))
            self._source.update(reached(self._path, self._revision))
            config = AutoConfig.from_pretrained(self._path, trust_remote_code=self._trusts_code, **self._source)
            if (own := Path(self._path) / "config.json").is_file():
                check_positions(own.read_text(encoding="utf-8"))
            check_task(config)
            check_numbers(config)
            if self._pretrained:
                return config
            config.vocab_size = sizes.get("vocab_size", config.vocab_size)
        else:
            check_known_fields(self._config)
            config = AutoConfig.for_model(**{**sizes, **self._config})
            check_task(config)
            check_numbers(config)
            check_head_counts(config)
        config.bos_token_id = config.eos_token_id = end_of_text
        config.pad_token_id = None  # torch never trains a padding id, and here it may be any token's
        return config

    def _with_attention(self, config: PreTrainedConfig, vocabulary_size: int, seed: int) -> CausalLanguageModel:
        """Return a model with the first attention that isolates documents, else with the first that it supports."""
        problems: list[Exception] = []
        usable: list[str] = []
        model: CausalLanguageModel | None = None
        for name in self._attention:
            try:
                if model is None or not _switched(model.probed, _stand_in(name)):
                    model = self._build_with(name, config, vocabulary_size, seed)
                self._probe(model, name, vocabulary_size)
            except (ValueError, ImportError) as error:
                problems.append(error)
                continue
            usable.append(name)
            if model.isolates_documents:
                break
        if model is None or not usable:
            raise problems[0]
        chosen = usable[-1] if model.isolates_documents else usable[0]
        model.network.set_attn_implementation(chosen)
        choose_loss(model)
        return self._noted(model, chosen)

    def _build_with(self, name: str, config: PreTrainedConfig, vocabulary_size: int, seed: int) -> CausalLanguageModel:
        folder = Path(str(self._path)) if self._pretrained and not self._awaits_weights else None
        if self._defers_weights and (folder is None or folder.is_dir()):
            model = build_deferred(config, partial(self._without_loading, attention=name), seed, folder)
            if model is not None:
                check_sizes(model.network, vocabulary_size=vocabulary_size, sequence_length=self._sequence_length)
                return model
        notes: list[str] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._load_weights(config, name, notes) if self._pretrained else self._from_scratch(config, name)
        check_sizes(network, vocabulary_size=vocabulary_size, sequence_length=self._sequence_length)
        model = CausalLanguageModel(network.train())
        model.notes += tuple(notes)
        return model

    def _probe(self, model: CausalLanguageModel, name: str, vocabulary_size: int) -> None:
        network = model.probed
        if name == VARLEN and not network._supports_flash_attn:  # noqa: SLF001  its masks need more than lengths
            msg = f"{type(network).__name__} cannot use varlen attention: set model.attention=auto"
            raise ValueError(msg)
        network.set_attn_implementation(_stand_in(name))
        room = min(_PROBED, self._sequence_length or _PROBED, longest_row(network.config) or _PROBED)
        num_ids = min(vocabulary_size, network.config.vocab_size)
        model.isolates_documents = probe_isolation(network, length=room, vocabulary=num_ids)

    def _from_scratch(self, config: PreTrainedConfig, attention: str) -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention, trust_remote_code=self._trusts_code
        )

    def _load_weights(self, config: PreTrainedConfig, attention: str, notes: list[str]) -> PreTrainedModel:
        assert self._path is not None
        if self._awaits_weights:
            return self._without_loading(config, attention)
        options = {"config": config, "dtype": torch.float32, "attn_implementation": attention}
        options["ignore_mismatched_sizes"] = True  # they are refused below, by their names
        weights = pickled_weights(self._path, self._pickle_of)
        if weights is None:
            network, report = AutoModelForCausalLM.from_pretrained(
                self._path,
                use_safetensors=True,
                trust_remote_code=self._trusts_code,
                output_loading_info=True,
                **options,
                **self._source,
            )
        else:
            with torch.device("meta"):
                kind = type(self._from_scratch(config, attention))
            network, report = kind.from_pretrained(None, state_dict=weights, output_loading_info=True, **options)
            network = self._with_settings(network)
        if missing := sorted(report["missing_keys"]):
            msg = f"the weights lack {len(missing)} of the model's tensors, such as {missing[0]}"
            raise ValueError(msg)
        if others := sorted(report["mismatched_keys"]):
            name, actual, expected = others[0]
            shapes = f"{name} is {tuple(actual)} in the weights and {tuple(expected)} by config.json"
            msg = f"{shapes}, and {len(others) - 1} more differ" if len(others) > 1 else shapes
            raise ValueError(msg)
        folder = self._folder
        check_types_in(folder, network)
        notes += [] if folder is None else weights_left_aside(folder)
        notes += [*describe_unloaded(network, folder, report["unexpected_keys"]), *describe_ties(network)]
        return network

    @property
    def _folder(self) -> Path | None:
        """Return the folder of the path, or of its files in the hub's cache; None if there is none."""
        assert self._path is not None
        if Path(self._path).is_dir():
            return Path(self._path)
        config_file = cached_file(self._path, CONFIG_NAME, local_files_only=True, revision=self._source["revision"])
        return None if config_file is None else Path(config_file).parent

    def _without_loading(self, config: PreTrainedConfig, attention: str) -> PreTrainedModel:
        """Return a network with new weights, which those of the path are to replace if there is one."""
        network = self._from_scratch(config, attention)
        return self._with_settings(network) if self._pretrained else network

    def _with_settings(self, network: PreTrainedModel) -> PreTrainedModel:
        """Give ``network``, whose weights do not come from the path, the settings of generation that are there."""
        assert self._path is not None
        if (settings := read_generation_settings(self._path, **self._source)) is not None:
            network.generation_config = settings
        return network

    def _noted(self, model: CausalLanguageModel, attention: str) -> CausalLanguageModel:
        name = type(model.network).__name__
        if attention != self._attention[0]:
            first = self._attention[0]
            model.notes += (f"attention is {attention}: {name} cannot use {first}, or mixes documents with it",)
        if not model.isolates_documents:
            model.notes += (f"{name} mixes the documents of a row, so a row must hold one document",)
        return model


def _stand_in(attention: str) -> str:
    # attention that needs a GPU is probed again there; here one with the same arguments replaces it
    if attention.startswith("flash_attention"):
        return VARLEN
    return "sdpa" if attention == "flex_attention" else attention


def _switched(network: PreTrainedModel, attention: str) -> bool:
    network.set_attn_implementation(attention)  # which some models do not obey
    return bool(network.config._attn_implementation == attention)  # noqa: SLF001  no public name


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
