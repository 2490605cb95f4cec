"""Small chat templates in the shapes of public families, and conversations of many shapes."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from tests.support.chat_fixtures import FOLDER, byte_level

if TYPE_CHECKING:
    from collections.abc import Mapping

FAMILIES: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / "families.json").read_text(encoding="utf-8"))
"""The template, the special tokens and the named tokens of each family."""
SHAPES: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / "shapes.json").read_text(encoding="utf-8"))
"""Records of conversations."""


def named_tokens(name: str) -> Mapping[str, str]:
    """Return the special tokens of the family ``name`` by their names."""
    return {"eos_token": "<|endoftext|>", **FAMILIES[name].get("tokens", {})}


@cache
def family(name: str) -> HuggingfaceTokenizer:
    """Return a small byte-level tokenizer with the template and the special tokens of the family ``name``."""
    tokens, source = named_tokens(name), FAMILIES[name]["template"]
    beside = {"tokenizer_config.json": json.dumps(tokens).encode(), "chat_template.jinja": source.encode()}
    core = byte_level(FAMILIES[name]["special"]).to_str()
    return HuggingfaceTokenizer(core, name=name, end_of_text=tokens["eos_token"], beside=beside, backend="huggingface")
