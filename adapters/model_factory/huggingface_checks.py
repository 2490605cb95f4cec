"""What is wrong with a Hugging Face model, found before its first step and said in one sentence."""

from __future__ import annotations

from difflib import get_close_matches
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedConfig, PreTrainedModel


def refuse_strangers(fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a field that the model does not have: transformers would keep it and never read it."""
    default = AutoConfig.for_model(fields["model_type"])
    known = {*default.to_dict(), *default.attribute_map, *_known_to_class(default)}
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            msg = f"it has no field {name}" + (f": did you mean {near[0]}?" if near else "")
            raise ValueError(msg)


def refuse_uneven_heads(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` for heads that share keys unevenly: transformers would find out in the first step."""
    heads, shared = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        msg = f"num_attention_heads, {heads}, is not a multiple of num_key_value_heads, {shared}"
        raise ValueError(msg)


def refuse_other_tasks(config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` for a model that transformers has, but not as one that predicts the next token."""
    kind = config.model_type
    has_own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not has_own_code:
        msg = f"a {kind} is not a causal language model: choose one that predicts the next token, such as llama or gpt2"
        raise ValueError(msg)


def check_sizes(network: PreTrainedModel, *, vocabulary_size: int, sequence_length: int | None) -> None:
    """Raise ``ConfigurationError`` if the tokenizer has more ids than the model, or rows are longer than it sees."""
    rows = network.get_input_embeddings().num_embeddings
    if rows < vocabulary_size:
        msg = f"the tokenizer has {vocabulary_size} ids but the model embeds {rows}: use the model's own tokenizer"
        raise ConfigurationError(msg)
    longest = longest_row(network)
    if longest is not None and sequence_length is not None and sequence_length > longest:
        msg = f"data.sequence_length is {sequence_length} but the model has {longest} positions: shorten it"
        raise ConfigurationError(msg)


def longest_row(network: PreTrainedModel) -> int | None:
    """Return how many positions the model has, None if it knows no such limit."""
    positions: int | None = getattr(network.config, "max_position_embeddings", None)
    return positions


def explain(error: Exception, path: str | None) -> str:
    """Return in one line why the model at ``path`` could not be built; what the hub refuses, in our words."""
    causes = list(_chain(error))
    if any(isinstance(cause, GatedRepoError) for cause in causes):
        return f"{path} is open only to those whom its owner let in: ask there, and put a token into HF_TOKEN"
    if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
        return f"the hub has no {path}, or only for those with a token in HF_TOKEN: correct model.path"
    is_missing = any(isinstance(cause, LocalEntryNotFoundError) for cause in causes)
    if constants.HF_HUB_OFFLINE and (is_missing or "offline" in str(error).lower()):
        return f"{path} is not among the files kept on this machine, and HF_HUB_OFFLINE forbids to fetch it"
    if is_missing:
        return f"the hub cannot be reached, and {path} is not among the files kept on this machine"
    is_word = isinstance(error, LookupError) or not str(error)  # such as KeyError("nope")
    return shorten(f"{type(error).__name__}: {error}" if is_word else str(error), width=300)


def _known_to_class(config: PreTrainedConfig) -> Iterator[str]:
    # such as hybrid_override_pattern of Nemotron-H, which is read and becomes another field
    kind = type(config)
    yield from (name for name in dir(kind) if isinstance(getattr(kind, name, None), property) and name[0] != "_")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
