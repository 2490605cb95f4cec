"""The settings with which a model generates in other programs: transformers' ``generation_config.json``."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
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
        config = GenerationConfig.from_pretrained(path, **source)
    except OSError:  # there is no such file, as transformers reports it
        return GenerationConfig(eos_token_id=ends) if isinstance(ends, list) else None
    if isinstance(ends, list):
        config.eos_token_id = list(dict.fromkeys([*_ids(config.eos_token_id), *ends]))
    return config


def end_generation_at(network: Any, ends: Sequence[int], *, is_special: Callable[[int], bool]) -> None:
    """Let ``network`` stop at ``ends``, end-of-text first, in every program that reads its settings.

    Its other settings stay, and it also stops where it stopped before, if that id ``is_special`` for its tokenizer. A
    network without the attribute ``generation_config`` stays as it is.
    """
    if not hasattr(network, "generation_config"):
        return
    ends_before = generation_ends(network)
    others = dict.fromkeys([*ends_before, *_ids(getattr(network.config, "eos_token_id", None))])
    ids = [*ends, *(number for number in others if number not in ends and is_special(number))]
    if ids == ends_before or (network.generation_config is None and len(ids) == 1):
        return  # config.json names a single one
    fields = {} if network.generation_config is None else network.generation_config.to_dict()
    fields.pop("_from_model_config", None)  # readers may take the values of config.json in place of such settings
    fields["eos_token_id"] = ids[0] if len(ids) == 1 else ids
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


_SCALED = ("linear", "dynamic", "yarn", "longrope", "llama3")
_NAMES = {"gpt_neox": ("rotary_emb_base", "rotary_pct"), "gpt_neox_japanese": ("rotary_emb_base", "rotary_pct")}
_OTHERS = ("rope_theta", "partial_rotary_factor")
_BASES_OF_LAYERS = {"modernbert-decoder": ("global_rope_theta", "local_rope_theta")}
_OTHER_BASES = ("rope_theta", "rope_local_base_freq")
# transformers 4 refuses a rope_scaling of these types that has other entries beside ``type``
_ONLY = {
    "phi3": ("short_factor", "long_factor"),
    "phi4_multimodal": ("short_factor", "long_factor"),
    "olmo": ("factor",),
    "olmo2": ("factor",),
}


def config_text(text: str) -> str:
    """Return the config.json ``text`` of transformers 5 with its rotary positions also under their earlier names.

    Transformers 4 and programs of its time ignore ``rope_parameters`` and would compute with default positions. The
    text stays as it is if transformers would then read another configuration from it, or does not know its type.
    """
    fields: dict[str, Any] = json.loads(text)
    for is_whole in (False, True):  # with all entries transformers 4 at least refuses what it cannot compute
        more: dict[str, Any] = json.loads(text, object_hook=partial(_with_earlier_names, is_whole=is_whole))
        if more != fields and _reads_alike(text, json.dumps(more)):
            return json.dumps(more, indent=2, sort_keys=True) + "\n"
    return text


def check_positions(text: str) -> None:
    """Raise ``ValueError`` if the config.json ``text`` gives rotary positions twice, with different values.

    Of two values transformers 5 uses one and transformers 4 the other, so a change of only one of them is a mistake.
    """
    json.loads(text, object_hook=_checked)


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    earlier = _earlier_names(fields, is_whole=True)
    for name in sorted(earlier.keys() & fields.keys()):
        now, then = earlier[name], fields[name]
        if isinstance(now, dict) and isinstance(then, dict):
            then = {"rope_type": then.get("type")} | then
            now, then = ({key: each[key] for key in now.keys() & then.keys()} for each in (now, then))
        if now != then and then is not None:
            msg = f"config.json has other rotary positions in {name} than in rope_parameters: change both"
            raise ValueError(msg)
    return fields


def _with_earlier_names(fields: dict[str, Any], *, is_whole: bool) -> dict[str, Any]:
    return {**_earlier_names(fields, is_whole=is_whole), **fields}


def _earlier_names(fields: dict[str, Any], *, is_whole: bool) -> dict[str, Any]:
    kind, rope = fields.get("model_type", ""), fields.get("rope_parameters")
    if not isinstance(rope, dict):
        return {}
    only = () if is_whole else _ONLY.get(kind, ())
    if "rope_theta" in rope:
        base, share = _NAMES.get(kind, _OTHERS)
        parts = {share: rope["partial_rotary_factor"]} if "partial_rotary_factor" in rope else {}
        return {base: rope["rope_theta"], **_scaling(rope, only), **parts}
    whole, local = rope.get("full_attention"), rope.get("sliding_attention")
    if not (isinstance(whole, dict) and isinstance(local, dict) and "rope_theta" in whole and "rope_theta" in local):
        return {}
    base, base_of_local = _BASES_OF_LAYERS.get(kind, _OTHER_BASES)
    return {base: whole["rope_theta"], base_of_local: local["rope_theta"], **_scaling(whole, only)}


def _scaling(rope: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    kind = rope.get("rope_type")
    if kind not in _SCALED:
        return {}
    if only:
        return {"rope_scaling": {"type": kind, **{key: rope[key] for key in only if key in rope}}}
    return {"rope_scaling": {key: value for key, value in rope.items() if key not in _OTHERS}}


def _reads_alike(text: str, more: str) -> bool:
    try:
        before, after = (
            AutoConfig.for_model(**json.loads(each, object_hook=_number)).to_dict() for each in (text, more)
        )
    except (AttributeError, ImportError, KeyError, TypeError, ValueError, StrictDataclassError):
        return False  # a type of other code, or one that refuses the earlier names
    for each in (before, after):
        if isinstance(rope := each.get("rope_parameters"), dict):
            rope.pop("type", None)  # the earlier name of rope_type, which stays beside it
    return all(after.get(key) == value for key, value in before.items())


def _number(found: dict[str, Any]) -> Any:
    """Return the number that transformers writes as an object, such as infinity; any other object as it is."""
    return float(found["__float__"]) if found.keys() == {"__float__"} else found
