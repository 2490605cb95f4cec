"""The settings with which a model generates in other programs: transformers' ``generation_config.json``."""

from __future__ import annotations

from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from holdfast.adapters.shared.tensor_state.file_parts import TextPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.ports.state_store import StatePart

_OF_SAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("repetition_penalty", "typical_p"), 1.0),
        **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0.0),
        **dict.fromkeys(("no_repeat_ngram_size", "min_new_tokens"), 0),
        **dict.fromkeys(("min_p", "top_h", "bad_words_ids", "suppress_tokens", "sequence_bias")),
        **dict.fromkeys(("exponential_decay_length_penalty", "renormalize_logits")),
    }
)
"""The settings of a model that change how its next token is sampled, with the values that change nothing."""


def read_generation_settings(path: str, ends: object = None, **source: Any) -> GenerationConfig | None:
    """Return the settings beside the model at ``path``, a folder or a hub name; None if it has none.

    ``ends`` is ``eos_token_id`` of config.json: several ends are settings too, and count beside those of the file.
    ``source`` are options of ``from_pretrained``, such as ``revision``.
    """
    try:
        found = GenerationConfig.from_pretrained(path, **source)
    except OSError:  # there is no such file, as transformers reports it
        return GenerationConfig(eos_token_id=ends) if isinstance(ends, list) else None
    if isinstance(ends, list):
        found.eos_token_id = list(dict.fromkeys([*_ids(found.eos_token_id), *ends]))
    return found


def end_generation_at(network: Any, ends: Sequence[int], *, is_special: Callable[[int], bool]) -> None:
    """Let ``network`` stop at ``ends``, end-of-text first, in every program that reads its settings.

    Its other settings stay, and it also stops where it stopped before, if that id ``is_special`` for its tokenizer. A
    network without the attribute ``generation_config`` stays as it is.
    """
    if not hasattr(network, "generation_config"):
        return
    known = generation_ends(network)
    others = dict.fromkeys([*known, *_ids(getattr(network.config, "eos_token_id", None))])
    found = [*ends, *(number for number in others if number not in ends and is_special(number))]
    if found == known or (network.generation_config is None and len(found) == 1):
        return  # config.json names a single one
    fields = {} if network.generation_config is None else network.generation_config.to_dict()
    fields.pop("_from_model_config", None)  # readers may take the values of config.json in place of such settings
    fields["eos_token_id"] = found[0] if len(found) == 1 else found
    network.generation_config = GenerationConfig.from_dict({"bos_token_id": ends[0], **fields})


def generation_ends(network: Any) -> Sequence[int]:
    """Return the ids at which ``network`` stops by its settings, none if it has no settings."""
    return _ids(getattr(getattr(network, "generation_config", None), "eos_token_id", None))


def sample_settings(network: Any) -> Mapping[str, Any]:
    """Return the settings of ``network`` that its samples obey besides those of ``Sampling``, by their names.

    They are none for networks that transformers does not generate with.
    """
    if not isinstance(network, PreTrainedModel):
        return {}
    config = getattr(network, "generation_config", None)
    values = {name: getattr(config, name, None) for name in _OF_SAMPLES}
    return {name: value for name, value in values.items() if value is not None and value != _OF_SAMPLES[name]}


@contextmanager
def only_settings(network: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Let ``network`` generate by ``settings`` in place of its own, which transformers would fill in."""
    own, network.generation_config = network.generation_config, GenerationConfig(**settings)
    try:
        yield
    finally:
        network.generation_config = own


def _ids(found: int | Sequence[int] | None) -> Sequence[int]:
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def generation_parts(network: Any) -> Sequence[StatePart]:
    """Return the file of the settings of ``network``, no file if it has none."""
    settings = getattr(network, "generation_config", None)
    return () if settings is None else (TextPart(GENERATION_CONFIG_NAME, settings.to_json_string()),)
