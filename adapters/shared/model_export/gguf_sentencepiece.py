"""SentencePiece's BPE, as ``tokenizers`` runs it, in the form of a GGUF file.

llama.cpp merges the two neighbours whose joint token has the highest score, and knows no list of merges.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_SPACE = "\u2581"
_NEVER_MERGED = -1e6
_PREPEND = [
    {"type": "Prepend", "prepend": _SPACE},
    {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
]


def check_sentencepiece(record: Mapping[str, Any], pairs: Sequence[tuple[str, ...]]) -> Sequence[str]:
    """Return remarks on the tokenizer with this ``tokenizer.json``, which llama.cpp must be able to repeat.

    ``pairs`` are its merges. They must join all neighbours whose joint text is a token, as SentencePiece does. Raises
    ``ConfigurationError`` if llama.cpp would encode in another way.
    """
    model, normalizer, before = record["model"], record["normalizer"], record["pre_tokenizer"] or {}
    if model["type"] != "BPE" or model.get("ignore_merges"):
        refuse(f"its model is {model['type']} with byte_fallback")
    is_metaspace = before.get("type") == "Metaspace" and before["prepend_scheme"] in ("always", "first")
    is_metaspace = is_metaspace and normalizer is None and not before.get("split", True)
    is_prepended = not before and (normalizer or {}).get("normalizers") == _PREPEND
    if not is_metaspace and not is_prepended:
        refuse("it does not put one space before a text and split no words, as Llama 2 does")
    known, joined = model["vocab"], set(pairs)
    added = {each["content"] for each in record["added_tokens"]}
    for token in (each for each in known if each not in added and not BYTE_TOKEN.fullmatch(each)):
        for pair in ((token[:cut], token[cut:]) for cut in range(1, len(token))):
            if pair[0] in known and pair[1] in known and pair not in joined:
                refuse(f"its merges do not join {pair[0]} and {pair[1]}, as SentencePiece would")
    return (
        ("llama.cpp puts a space before each text, this tokenizer not before one with a space",) if is_metaspace else ()
    )


def token_scores(tokens: Sequence[str], pairs: Sequence[tuple[str, ...]]) -> list[float]:
    """Return a score for each of ``tokens``: the higher, the earlier one of the merges ``pairs`` makes it."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks[token]) if token in ranks else _NEVER_MERGED for token in tokens]


def refuse(reason: str) -> NoReturn:
    """Raise ``ConfigurationError`` with the ``reason`` why a tokenizer has no place in a GGUF file."""
    msg = (
        f"the tokenizer cannot be written as GGUF: {reason}; those like the ones of GPT-2, Llama 2 and 3, Mistral, "
        "Qwen and GPT-4o can"
    )
    raise ConfigurationError(msg)
