"""The settings with which a model generates in other programs: transformers' ``generation_config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from holdfast.adapters.shared.tensor_state.file_parts import TextPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ports.state_store import StatePart


def read_generation_settings(path: str, **source: Any) -> GenerationConfig | None:
    """Return the settings beside the model at ``path``, a folder or a hub name; None if it has none.

    ``source`` are options of ``from_pretrained``, such as ``revision``.
    """
    try:
        return GenerationConfig.from_pretrained(path, **source)
    except OSError:  # there is no such file, as transformers reports it
        return None


def end_generation_at(network: Any, ends: Sequence[int], *, is_special: Callable[[int], bool]) -> None:
    """Let ``network`` stop at ``ends``, end-of-text first, in every program that reads its settings.

    Its other settings stay, and it also stops where it stopped before, if that id ``is_special`` for its tokenizer. A
    network without the attribute ``generation_config`` stays as it is.
    """
    if not hasattr(network, "generation_config"):
        return
    known = generation_ends(network)
    found = [*ends, *(number for number in known if number not in ends and is_special(number))]
    if found == known or (network.generation_config is None and len(found) == 1):
        return  # config.json names a single one
    fields = {} if network.generation_config is None else network.generation_config.to_dict()
    fields.pop("_from_model_config", None)  # readers may take the values of config.json in place of such settings
    fields["eos_token_id"] = found[0] if len(found) == 1 else found
    network.generation_config = GenerationConfig.from_dict({"bos_token_id": ends[0], **fields})


def generation_ends(network: Any) -> Sequence[int]:
    """Return the ids at which ``network`` stops by its settings, none if it has no settings."""
    found = getattr(getattr(network, "generation_config", None), "eos_token_id", None)
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def generation_parts(network: Any) -> Sequence[StatePart]:
    """Return the file of the settings of ``network``, no file if it has none."""
    settings = getattr(network, "generation_config", None)
    return () if settings is None else (TextPart(GENERATION_CONFIG_NAME, settings.to_json_string()),)
