"""Splits words longer than a piece, for example a megabyte of letters, between two tokens, with the same ids."""

from __future__ import annotations

import json
import re
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Tokenizer

from holdfast.adapters.tokenizer.backends.byte_level import rank_tokens
from holdfast.adapters.tokenizer.backends.encoder import UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from holdfast.ports.tokenizer import Encoded

    Ids = NDArray[np.unsignedinteger]
    Encode = Callable[[Sequence[str]], Encoded]

_WITHIN = re.compile(r"(?<=[A-Za-z]{4})[A-Za-z]")  # so far within a word that no contraction like 're precedes
_CONTEXT = 256  # characters on either side in which a place between two tokens is looked for
_ROUNDS = 4


@final
class LongWords:
    """Encodes a text that cannot be cut between words, by the merges of ``core``.

    If each token of a byte pair encoding is the encoding of its own bytes, then tokens are the encoding of their text
    if and only if each two neighbours are the encoding of theirs (github/rust-gems, crates/bpe). So a text is cut
    between any two tokens, and the two at each cut are compared with the encoding of both.
    """

    def __init__(self, core: Tokenizer) -> None:
        self._core = core

    def encode(self, encode: Encode, text: str, size: int) -> Ids:
        """Return the ids of ``text``, passed to ``encode`` in parts of about ``size``, or whole if it cannot be cut."""
        cuts = self._cuts(encode, text, size) if self._is_mergeable else []
        for _ in range(_ROUNDS):
            parts = [encode([text[begin:end]]).ids for begin, end in pairwise([0, *cuts, len(text)])]
            whole = self._hold(encode, text, cuts, parts)
            if all(whole):
                return np.concatenate(parts)
            cuts = [cut for cut, is_whole in zip(cuts, whole, strict=True) if is_whole]
        return encode([text]).ids

    def _cuts(self, encode: Encode, text: str, size: int) -> list[int]:
        cuts: list[int] = []
        near = size
        while near + size < len(text) and (found := _WITHIN.search(text, near)):
            begin = found.start() - _CONTEXT
            around = text[max(begin, 0) : found.start() + _CONTEXT]
            lengths = self._lengths[encode([around]).ids]
            ends = max(begin, 0) + np.cumsum(lengths)
            last = max(cuts, default=0)
            usable = [end for end in ends[:-1].tolist() if end > last and around.isascii() and _WITHIN.match(text, end)]
            if usable:
                cuts.append(min(usable, key=lambda end: abs(end - found.start())))
            near = found.start() + size
        return cuts

    def _hold(self, encode: Encode, text: str, cuts: Sequence[int], parts: Sequence[Ids]) -> list[bool]:
        """Return for each cut whether the tokens beside it are those of the uncut text."""
        beside = [(before[-1], after[0]) for before, after in pairwise(parts)]
        spans = [tuple(int(self._lengths[number]) for number in pair) for pair in beside]
        texts = [text[cut - left : cut + right] for cut, (left, right) in zip(cuts, spans, strict=True)]
        return [
            together.isascii() and tuple(ids) == pair
            for together, ids, pair in zip(texts, encode(texts), beside, strict=True)
        ]

    @cached_property
    def _is_mergeable(self) -> bool:
        record = json.loads(self._core.to_str())
        merger = Tokenizer.from_str(json.dumps({**record, "added_tokens": []})).model
        merger.ignore_merges = False
        try:
            rank_tokens(record["model"], merger.tokenize)
        except UnfitError:
            return False
        return True

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        """Return how many bytes the token of each id has; each character of it stands for one."""
        vocabulary = self._core.get_vocab(with_added_tokens=True)
        lengths = np.zeros(1 + max(vocabulary.values()), np.int64)
        for token, number in vocabulary.items():
            lengths[number] = len(token)
        return lengths
