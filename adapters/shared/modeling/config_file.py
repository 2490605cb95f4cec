"""The text of a model's config.json, with positions named as every version of transformers reads them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

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
