"""The text of a model's config.json, with positions named as every version of transformers reads them."""

from __future__ import annotations

import json
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

_SCALED = ("linear", "dynamic", "yarn", "longrope", "llama3")
_NAMES = {"gpt_neox": ("rotary_emb_base", "rotary_pct"), "gpt_neox_japanese": ("rotary_emb_base", "rotary_pct")}
_OTHERS = ("rope_theta", "partial_rotary_factor")
_LOCAL = "rope_local_base_freq"


def config_text(text: str) -> str:
    """Return the config.json ``text`` of transformers 5 with its rotary positions also under their earlier names.

    Transformers 4 and programs of its time ignore ``rope_parameters`` and would compute with default positions. The
    text stays as it is if transformers would then read another configuration from it, or does not know its type.
    """
    fields: dict[str, Any] = json.loads(text)
    more: dict[str, Any] = json.loads(text, object_hook=_with_earlier_names)
    if more == fields or not _reads_alike(text, json.dumps(more)):
        return text
    return json.dumps(more, indent=2, sort_keys=True) + "\n"


def _with_earlier_names(fields: dict[str, Any]) -> dict[str, Any]:
    rope = fields.get("rope_parameters")
    if not isinstance(rope, dict):
        return fields
    if "rope_theta" in rope:
        base, share = _NAMES.get(fields.get("model_type", ""), _OTHERS)
        parts = {share: rope["partial_rotary_factor"]} if "partial_rotary_factor" in rope else {}
        return {base: rope["rope_theta"], **_scaling(rope), **parts, **fields}
    whole, local = rope.get("full_attention"), rope.get("sliding_attention")
    if not (isinstance(whole, dict) and isinstance(local, dict) and "rope_theta" in whole and "rope_theta" in local):
        return fields
    return {"rope_theta": whole["rope_theta"], _LOCAL: local["rope_theta"], **_scaling(whole), **fields}


def _scaling(rope: dict[str, Any]) -> dict[str, Any]:
    if rope.get("rope_type") not in _SCALED:
        return {}
    return {"rope_scaling": {key: value for key, value in rope.items() if key not in _OTHERS}}


def _reads_alike(text: str, more: str) -> bool:
    try:
        before, after = (
            AutoConfig.for_model(**json.loads(each, object_hook=_number)).to_dict() for each in (text, more)
        )
    except (AttributeError, ImportError, KeyError, TypeError, ValueError, StrictDataclassError):
        return False  # a type of other code, or one that refuses the earlier names
    return all(after.get(key) == value for key, value in before.items())


def _number(found: dict[str, Any]) -> Any:
    """Return the number that transformers writes as an object, such as infinity; any other object as it is."""
    return float(found["__float__"]) if found.keys() == {"__float__"} else found
