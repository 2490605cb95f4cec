"""Builds the project's own decoder from its shape, or from the weights in a folder."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, final

import torch
from transformers import AutoConfig
from typing_extensions import override

from holdfast.adapters.model_factory.loaded_weights import check_types
from holdfast.adapters.model_factory.model_folder import (
    check_model_folder,
    read_json,
    weight_files,
    weights_left_aside,
)
from holdfast.adapters.shared.decoder.decoder_attention import SdpaAttention, choose_attention
from holdfast.adapters.shared.decoder.decoder_config import DecoderConfig
from holdfast.adapters.shared.decoder.decoder_shape import DecoderShape, Dropout
from holdfast.adapters.shared.decoder.huggingface_config import (
    FAMILIES,
    OWN_TYPE,
    obstacle_to_export,
    shape_of,
    value_of,
)
from holdfast.adapters.shared.decoder.network import DecoderNetwork, initial_weights
from holdfast.adapters.shared.modeling.activation_checkpointing import checkpoint_model
from holdfast.adapters.shared.modeling.attention import VARLEN
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.deferred_weights import DeferredWeights, draw_weights, place_weights
from holdfast.adapters.shared.modeling.document_isolation import probe_isolation
from holdfast.adapters.shared.modeling.generation_settings import read_generation_settings
from holdfast.adapters.shared.modeling.loss_selection import choose_loss
from holdfast.adapters.shared.tensor_state.sharded_tensors import tensors_in
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.basic import BasicModelFactory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.adapters.shared.decoder.decoder_attention import Attention
    from holdfast.adapters.shared.modeling.deferred_weights import Fill, InitialWeight
    from holdfast.domain.training.memory_fit import CheckpointBudget

_PROBED = 48  # tokens
_PROBED_IDS = 512
_OWN_HEAD = (
    "config.json ties lm_head.weight to the embeddings, but the files hold other values: they are not tied, and "
    "checkpoints say so"
)
_MATRIX = re.compile(r"^lm_head\.weight$|(^|\.)(embed_tokens|wte)\.weight$")


@final
class DecoderModelFactory(BasicModelFactory[CausalLanguageModel]):
    """Builds a decoder from the choice of all its parts, or from the weights in a model folder.

    ``config`` are the flat fields of ``holdfast.adapters.shared.decoder.huggingface_config``; without ``vocab_size``
    the model embeds the tokenizer's ids. ``path`` replaces it: a folder of safetensors weights and a config.json, in
    Hugging Face's form or Holdfast's. ``dropout`` are the fields of ``Dropout``; None means those of the folder, or no
    dropout without a folder. ``initialisation`` and ``initializer_range`` say how new weights are drawn;
    ``sequence_length`` is the longest row that the model sees, ``gradient_checkpointing`` a policy of
    ``holdfast.adapters.shared.modeling.activation_checkpointing`` or a budget.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        path: str | None = None,
        dropout: Mapping[str, float] | None = None,
        attention: str = "auto",
        initialisation: str = "auto",
        initializer_range: float = 0.02,
        sequence_length: int | None = None,
        gradient_checkpointing: str | CheckpointBudget = "none",
    ) -> None:
        self._config = dict(config or {})
        self._path = None if path is None else Path(path)
        self._dropout = dropout
        self._attention = attention
        self._initialisation = initialisation
        self._initializer_range = initializer_range
        self._sequence_length = sequence_length
        self._checkpointing = gradient_checkpointing
        self._notes: tuple[str, ...] = ()
        self._awaits_weights = False
        self._defers_weights = False

    @override
    def defer_weights(self) -> None:
        self._defers_weights = True

    @override
    def await_weights(self) -> None:
        """Do not read the weights at ``path`` from now on, as all of them are restored from a checkpoint."""
        self._awaits_weights = True

    @override
    def build(self, *, vocabulary_size: int, end_of_text: int, seed: int) -> CausalLanguageModel:
        shape, dropout = self._described(vocabulary_size)
        if self._dropout is not None:
            dropout = value_of(Dropout, self._dropout, "model.dropout")
        self._check(shape, vocabulary_size)
        attention = choose_attention(self._attention)
        model = self._with_weights(DecoderConfig(shape, dropout, end_of_text), attention, seed)
        if self._path is not None:
            ends = read_json(self._path / "config.json").get("eos_token_id")
            model.network.generation_config = read_generation_settings(str(self._path), ends)
            model.notes += (*weights_left_aside(self._path), *self._notes)
        length, probed = min(_PROBED, shape.positions.longest), model.probed
        model.isolates_documents = probe_isolation(probed, length=length, vocabulary=probed.config.vocab_size)
        choose_loss(model)
        if (obstacle := obstacle_to_export(shape)) is not None:
            model.notes += (
                f"warning: export will refuse this model, and only Holdfast can load its checkpoints, as {obstacle}",
            )
        kind = "sdpa" if isinstance(attention, SdpaAttention) else VARLEN
        checkpoint_model(model, self._checkpointing, attention=kind)
        return model

    @override
    def check(self, *, vocabulary_size: int | None = None) -> None:
        shape, _ = self._described(vocabulary_size or 1)
        self._check(shape, vocabulary_size or 0)

    @override
    def longest_row(self) -> int | None:
        return self._described(1)[0].positions.longest

    def _with_weights(self, config: DecoderConfig, attention: Attention, seed: int) -> CausalLanguageModel:
        network, draw = self._undrawn(config, attention, seed)
        fill = draw if self._path is None or self._awaits_weights else partial(_load, folder=self._path)
        if not self._defers_weights:
            return _in_host_memory(network, fill)
        small = replace(config, shape=_smallest(config.shape))
        probed = _in_host_memory(*self._undrawn(small, attention, seed)).network
        return CausalLanguageModel(network, deferred=DeferredWeights(fill, probed))

    def _undrawn(self, config: DecoderConfig, attention: Attention, seed: int) -> tuple[DecoderNetwork, Fill]:
        """Return a network on the meta device, and the function that draws new weights for it."""
        with torch.device("meta"):  # where torch's own initialisation costs nothing and draws nothing
            network = DecoderNetwork(config, attention)
        scheme, deviation = self._initialisation, self._initializer_range
        weights = initial_weights(network, seed=seed, scheme=scheme, deviation=deviation)
        return network, partial(_draw, weights=weights)

    def _described(self, vocabulary_size: int) -> tuple[DecoderShape, Dropout]:
        if self._path is None:
            named = self._config.get("vocab_size")
            fields = {**self._config, "vocab_size": vocabulary_size if named is None else named}
            return shape_of(fields), Dropout()
        if self._config:
            msg = f"model.path gives the shape of {self._path}: leave out {', '.join(sorted(self._config))}"
            raise ConfigurationError(msg)
        shape, dropout = _read_folder(self._path)
        if shape.tied and not self._awaits_weights and _has_own_head(self._path):
            shape, self._notes = replace(shape, tied=False), (_OWN_HEAD,)  # as transformers reads it
        return shape, dropout

    def _check(self, shape: DecoderShape, vocabulary_size: int) -> None:
        if shape.vocabulary_size < vocabulary_size:
            msg = f"the tokenizer has {vocabulary_size} ids but the model embeds {shape.vocabulary_size}: "
            raise ConfigurationError(msg + "raise model.vocab_size or use the model's own tokenizer")
        longest = shape.positions.longest
        if self._sequence_length is not None and self._sequence_length > longest:
            msg = f"data.sequence_length is {self._sequence_length} but the model has {longest} positions: "
            raise ConfigurationError(msg + "shorten it or raise model.max_position_embeddings")


def _read_folder(folder: Path) -> tuple[DecoderShape, Dropout]:
    check_model_folder(folder)
    config = read_json(folder / "config.json")
    model_type = config.get("model_type")
    if model_type == OWN_TYPE:
        strangers = ("model_type", "dtype", "dropout", "bos_token_id", "eos_token_id", "pad_token_id")
        fields = {name: value for name, value in config.items() if name not in strangers}
        return shape_of(fields), value_of(Dropout, config.get("dropout", {}), "dropout")
    families = {family.model_type: family for family in FAMILIES}
    if model_type not in families:
        types = ", ".join((OWN_TYPE, *families))
        msg = f"{folder} holds a {model_type} model, but a decoder reads only {types}: use model.kind huggingface"
        raise ConfigurationError(msg)
    try:
        complete = AutoConfig.for_model(**config).to_dict()  # with transformers' defaults
    except Exception as error:  # transformers' errors over a configuration have no common type
        reason = shorten(str(error), width=200)
        msg = f"{folder / 'config.json'} does not describe a {model_type}, {reason}: set model.path to another folder"
        raise ConfigurationError(msg) from error
    return families[model_type].read(complete)


def _in_host_memory(network: DecoderNetwork, fill: Fill) -> CausalLanguageModel:
    model = CausalLanguageModel(network, deferred=DeferredWeights(fill, network))
    place_weights(model, torch.device("cpu"))
    return model


def _smallest(shape: DecoderShape) -> DecoderShape:
    """Return a shape with one layer of ``shape`` and few ids, for checks of what all layers have in common."""
    return replace(shape, num_layers=1, vocabulary_size=min(shape.vocabulary_size, _PROBED_IDS))


def _draw(model: CausalLanguageModel, weights: Sequence[InitialWeight]) -> None:
    draw_weights(weights, dict(model.network.named_parameters()))


def _has_own_head(folder: Path) -> bool:
    """Return whether the files in ``folder`` hold an output matrix that differs from the embedding."""
    try:
        with tensors_in(weight_files(folder)) as saved:
            matrices = [saved.whole(name).float() for name in saved.shapes if _MATRIX.search(name)]
    except StateError:
        return False  # which loading reports
    return len(matrices) == 2 and not torch.equal(*matrices)


def _load(model: CausalLanguageModel, folder: Path) -> None:
    try:
        with tensors_in(weight_files(folder)) as saved:
            check_types(saved)
            model.loading(saved)()
    except StateError as error:
        msg = f"the weights in {folder} cannot be used: {error}"
        raise ConfigurationError(msg) from error
