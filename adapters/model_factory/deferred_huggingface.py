"""Builds models of transformers whose weights are drawn or read after the model was divided among ranks."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from holdfast.adapters.model_factory.loaded_weights import check_types
from holdfast.adapters.model_factory.model_folder import weight_files
from holdfast.adapters.model_factory.recorded_draws import build_undrawn
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.deferred_weights import DeferredWeights
from holdfast.adapters.shared.tensor_state.sharded_tensors import tensors_in
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedConfig

    from holdfast.adapters.model_factory.recorded_draws import UndrawnNetwork
    from holdfast.adapters.shared.modeling.deferred_weights import Fill

DEFERRED = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
"""The model types whose layers are alike, so that one layer shows what a check of the model would find."""
_PROBED_IDS = 512


def build_deferred(
    config: PreTrainedConfig, build: Callable[[PreTrainedConfig], Any], seed: int, folder: Path | None
) -> CausalLanguageModel | None:
    """Return the model that ``build`` draws for ``config``, with its weights deferred; None if that is impossible.

    With ``folder`` its weights are read there, if the files have exactly the model's tensors, by the same names.
    """
    if config.model_type not in DEFERRED or len(set(getattr(config, "layer_types", None) or [])) > 1:
        return None
    found = build_undrawn(lambda: build(config), seed)
    if found is None or (folder is not None and not _has_weights_of(found.network, folder)):
        return None
    fill: Fill = found.draw if folder is None else partial(_read, found=found, folder=folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probed = build(_smallest(config))
    return CausalLanguageModel(found.network.train(), deferred=DeferredWeights(fill, probed.train()))


def _has_weights_of(network: Any, folder: Path) -> bool:
    own: dict[int, tuple[str, torch.Size]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        own.setdefault(id(tensor), (name, tensor.shape))
    try:
        with tensors_in(weight_files(folder)) as saved:
            return saved.shapes == dict(own.values())
    except StateError:
        return False  # transformers may find other files there


def _read(model: CausalLanguageModel, found: UndrawnNetwork, folder: Path) -> None:
    found.place_kept(model)
    try:
        with tensors_in(weight_files(folder)) as saved:
            check_types(saved)
            model.loading(saved)()
    except StateError as error:
        msg = f"the weights in {folder} cannot be used: {error}"
        raise ConfigurationError(msg) from error


def _smallest(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return ``config`` with one layer and few ids."""
    small: Any = deepcopy(config)
    small.num_hidden_layers = 1
    small.vocab_size = min(small.vocab_size, _PROBED_IDS)
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
    for name in ("bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    return small
