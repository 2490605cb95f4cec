"""Converts a byte-level BPE of Hugging Face into tiktoken's form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.tokenizer.backends.encoder import UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

# ByteLevel's expression, from tokenizers' pre_tokenizers/byte_level.rs
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_PARTS = re.compile(r"\\.|.", re.DOTALL)
_BEYOND_PLAIN = re.compile(r"\(\?[^:i]|\\[1-9KGkgzZA]|[+*?]\+|\d\}\+")  # look-arounds, references, possessive repeats
_FLAGS = re.compile(r"\(\?[a-zA-Z-]*x|\(\?[a-zA-Z-]+\)")  # comments, or flags for all that follows

_UNPRINTED = (*range(33), *range(127, 161), 173)
LETTERS = tuple(chr(256 + _UNPRINTED.index(byte)) if byte in _UNPRINTED else chr(byte) for byte in range(256))
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The tokens that merging can make, by the order in which they are merged: ``ids[rank]`` is a token's id."""

    by_token: Mapping[bytes, int]
    ids: NDArray[np.uint32]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of each rank's token, int64 (num_ranks,)."""
        return np.fromiter(map(len, self.by_token), np.int64, len(self.by_token))


def rank_tokens(model: Mapping[str, Any], merge: Callable[[str], Sequence[object]]) -> Ranks:
    """Return the ranks of a BPE ``model``, as a ``tokenizer.json`` holds it; ``merge`` gives the parts of a word.

    tiktoken joins any two neighbours whose bytes are a token, Hugging Face only those that are listed. Both agree if
    the merges of each token are consecutive and merging the token's own bytes gives the token: its bytes are then
    merged in a text as they are alone, so no other pair with the same bytes ever occurs. Tokens that merging never
    produces are left out. Raises ``UnfitError`` if the condition fails.
    """
    check_options(model)
    vocabulary: Mapping[str, int] = model["vocab"]
    if missing := [byte for byte, letter in enumerate(LETTERS) if letter not in vocabulary]:
        msg = f"the tokenizer's vocabulary lacks {len(missing)} of the 256 bytes"
        raise UnfitError(msg)
    products = list(_products(model["merges"]))
    made = [token for token in products if len(merge(token)) == 1]
    whole = {*LETTERS, *made}
    if model.get("ignore_merges") and any(set(token) <= BYTES.keys() and token not in whole for token in vocabulary):
        msg = "it ignores merges for words of its vocabulary that merging does not produce"
        raise UnfitError(msg)
    tokens = [*LETTERS, *made]
    ids = np.fromiter((vocabulary[token] for token in tokens), np.uint32, len(tokens))
    return Ranks({bytes(map(BYTES.__getitem__, token)): rank for rank, token in enumerate(tokens)}, ids)


def split_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str:
    """Return the expression that splits a text into words; raises ``UnfitError`` if there is not exactly one."""
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2_PATTERN
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    msg = "the tokenizer's pre-tokenizer is not one expression and then bytes"
    raise UnfitError(msg)


def group_plain(pattern: str) -> str:
    """Return an equal expression whose first alternatives without look-arounds form one group.

    tiktoken's engine (fancy-regex) runs look-arounds in a slow matcher that tries one alternative after another; a
    group without them is one step of it. This takes 0.7 of the time for GPT-2's expression.
    """
    alternatives = _alternatives(pattern)
    plain = list(takewhile(lambda each: not _BEYOND_PLAIN.search(each), alternatives))
    if len(plain) < 2 or len(plain) == len(alternatives) or _FLAGS.search(pattern):
        return pattern
    return "|".join([f"(?:{'|'.join(plain)})", *alternatives[len(plain) :]])


def _alternatives(pattern: str) -> list[str]:
    """Return the alternatives that ``|`` separates outside of all brackets."""
    alternatives, round_brackets, square_brackets = [""], 0, 0
    for part in _PARTS.findall(pattern):
        if not square_brackets:
            round_brackets += (part == "(") - (part == ")")
        square_brackets += (part == "[") - (part == "]")
        if part == "|" and not round_brackets and not square_brackets:
            alternatives.append("")
        else:
            alternatives[-1] += part
    return alternatives


def check_options(model: Mapping[str, Any]) -> None:
    """Raise ``UnfitError`` for a model that is no BPE, or one with options beyond merging bytes."""
    if model["type"] != "BPE":
        msg = f"the tokenizer's model is {model['type']}, not BPE"
        raise UnfitError(msg)
    for option in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(option):
            msg = f"the tokenizer's model uses {option}"
            raise UnfitError(msg)


def _products(merges: Sequence[Sequence[str]]) -> Iterator[str]:
    seen = set(LETTERS)
    words = ["".join(pair) for pair in merges]
    for previous, word in pairwise(["", *words]):
        if word == previous:
            continue
        if word in seen or not set(word) <= BYTES.keys():
            msg = f"the merges of its token {word!r} are not consecutive, or the token is not made of bytes"
            raise UnfitError(msg)
        seen.add(word)
        yield word
