"""Any causal model of Hugging Face transformers, from its configuration or from weights."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, final

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from typing_extensions import override

from adapters.shared.causal_language_model import CausalLanguageModel
from domain.errors import ConfigurationError
from ports.model_factory import ModelFactory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedConfig, PreTrainedModel


@final
class HuggingfaceModelFactory(ModelFactory[CausalLanguageModel]):
    """Builds ``AutoModelForCausalLM`` from a local folder or hub name, or from a configuration.

    ``path`` with ``pretrained`` loads safetensors weights, without it only the configuration there; with no path,
    ``config`` (``model_type`` and its fields) describes a new model. Code from model folders is never run.
    ``sequence_length`` is the longest row that the model will see.
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
    ) -> None:
        self._path = path
        self._revision = revision
        self._pretrained = pretrained and path is not None
        self._config = dict(config or {})
        self._attention = "sdpa" if attention == "auto" else attention
        self._sequence_length = sequence_length

    @override
    def build(self, *, vocabulary_size: int, end_of_text: int, seed: int) -> CausalLanguageModel:
        try:
            config = self._load_config(vocabulary_size, end_of_text)
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                network = self._load_weights(config) if self._pretrained else self._from_scratch(config)
        except Exception as error:  # models raise whatever they like over a configuration
            msg = f"model {self._path or self._config.get('model_type')} cannot be built: {_in_one_line(error)}"
            raise ConfigurationError(msg) from error
        self._check(network, vocabulary_size)
        network.config.architectures = [type(network).__name__]
        return CausalLanguageModel(network.train())

    def _load_config(self, vocabulary_size: int, end_of_text: int) -> PreTrainedConfig:
        if self._path is not None:
            if self._path.startswith(("/", ".", "~")) and not Path(self._path).is_dir():
                msg = "there is no such folder: set model.path to a model folder or a hub name"
                raise ValueError(msg)
            config = AutoConfig.from_pretrained(self._path, revision=self._revision, trust_remote_code=False)
            if self._pretrained:
                return config
            config.vocab_size = vocabulary_size
        else:
            _refuse_strangers(self._config)
            config = AutoConfig.for_model(**{"vocab_size": vocabulary_size, **self._config})
            _refuse_uneven_heads(config)
        config.bos_token_id = config.eos_token_id = end_of_text
        config.pad_token_id = None  # torch never trains a padding id, and here it may be any token's
        return config

    def _from_scratch(self, config: PreTrainedConfig) -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=self._attention, trust_remote_code=False
        )

    def _load_weights(self, config: PreTrainedConfig) -> PreTrainedModel:
        network, report = AutoModelForCausalLM.from_pretrained(
            self._path,
            config=config,
            revision=self._revision,
            dtype=torch.float32,
            attn_implementation=self._attention,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        if missing := sorted(report["missing_keys"]):
            msg = f"the weights there lack {len(missing)} of the model's tensors, {missing[0]} for one"
            raise ValueError(msg)
        return network

    def _check(self, network: PreTrainedModel, vocabulary_size: int) -> None:
        rows = network.get_input_embeddings().num_embeddings
        if rows < vocabulary_size:
            msg = f"the tokenizer has {vocabulary_size} ids but the model embeds {rows}: use the model's own tokenizer"
            raise ConfigurationError(msg)
        longest = getattr(network.config, "max_position_embeddings", None)
        if longest is not None and self._sequence_length is not None and self._sequence_length > longest:
            msg = f"data.sequence_length is {self._sequence_length} but the model has {longest} positions: shorten it"
            raise ConfigurationError(msg)


def _refuse_strangers(fields: Mapping[str, Any]) -> None:
    """Refuse a field that the model does not have: transformers would keep it and never read it."""
    default = AutoConfig.for_model(fields["model_type"])
    known = {*default.to_dict(), *default.attribute_map}
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            msg = f"it has no field {name}" + (f": did you mean {near[0]}?" if near else "")
            raise ValueError(msg)


def _refuse_uneven_heads(config: PreTrainedConfig) -> None:
    """Refuse heads that share keys unevenly: transformers would find out in the first step."""
    heads, shared = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        msg = f"num_attention_heads, {heads}, is not a multiple of num_key_value_heads, {shared}"
        raise ValueError(msg)


def _in_one_line(error: Exception) -> str:
    is_word = isinstance(error, LookupError) or not str(error)  # such as KeyError("nope")
    return shorten(f"{type(error).__name__}: {error}" if is_word else str(error), width=300)
