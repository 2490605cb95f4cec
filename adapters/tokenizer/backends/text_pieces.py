"""Splits long documents into pieces: the same ids, in memory that does not grow with the document."""

from __future__ import annotations

import json
import re
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Tokenizer

from holdfast.adapters.tokenizer.backends.byte_level import GPT2_PATTERN, rank_tokens, split_pattern
from holdfast.adapters.tokenizer.backends.encoder import UnfitError, join
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.unsignedinteger]
    Encode = Callable[[Sequence[str]], Encoded]

PIECE_CHARACTERS = 1 << 16
_AT_ONCE = 16  # pieces: Hugging Face takes some hundred bytes for each character
_LONG = 4  # pieces that a word may fill before it is cut itself

_WORDS, _REST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# In each of these expressions a word that holds a letter or digit ends before what is neither of them, no
# apostrophe and no mark, whatever follows. So both sides are split alike wherever they stand. Whitespace looks one
# character ahead, but none stands before such a place.
_SAFE_PATTERNS = frozenset(
    {
        GPT2_PATTERN,
        # Llama 3 and cl100k
        _WORDS + r"\p{N}{1,3}" + _REST,
        # Qwen 2 and 3
        _WORDS + r"\p{N}" + _REST,
    }
)
_ENDS = r"[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3]"
_CUT = re.compile(rf"(?<={_ENDS})[\0-&(-/:-@\[-`{{-\x7f\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]")


def can_be_cut(core: Tokenizer) -> bool:
    """Return whether ``core`` gives a text the same ids whole as in the pieces that ``pieces`` yields."""
    record = json.loads(core.to_str())
    try:
        pattern = split_pattern(record["pre_tokenizer"])
    except UnfitError:
        return False
    # NFC joins no two characters across a place where the second one is of ASCII or a mark of punctuation
    is_plain = (record["normalizer"] or {"type": "NFC"})["type"] == "NFC"
    return pattern in _SAFE_PATTERNS and is_plain and all(token["special"] for token in record["added_tokens"])


def pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces, each cut at the first possible place from ``size`` characters on."""
    start = 0
    while len(text) - start > size and (cut := _CUT.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


@final
class TextPieces:
    """Encodes documents for ``core`` in pieces of about ``size`` characters, several at once."""

    def __init__(self, core: Tokenizer, size: int = PIECE_CHARACTERS) -> None:
        self._core = core
        self._size = size
        self._long_words = LongWords(core)

    def fit(self, documents: Sequence[str]) -> bool:
        """Return whether any of ``documents`` is long enough to be cut and can be cut."""
        return max(map(len, documents), default=0) > self._size and self._can_be_cut

    def encode(self, encode: Encode, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``; ``encode`` gets several of their pieces at once."""
        cut = [list(pieces(document, self._size)) for document in documents]
        encoded = join(
            [self._encode(encode, group) for group in self._groups([piece for each in cut for piece in each])]
        )
        ends = list(accumulate(map(len, cut), initial=0))
        return Encoded(encoded.ids, encoded.offsets[np.array(ends)])

    @cached_property
    def _can_be_cut(self) -> bool:
        return can_be_cut(self._core)

    def _encode(self, encode: Encode, group: Sequence[str]) -> Encoded:
        if len(group) != 1 or len(group[0]) <= _LONG * self._size:
            return encode(group)
        ids = self._long_words.encode(encode, group[0], self._size)
        return Encoded(ids, np.array([0, len(ids)]))

    def _groups(self, parts: Sequence[str]) -> Iterator[Sequence[str]]:
        group: list[str] = []
        held = 0
        for part in parts:
            if group and held + len(part) > _AT_ONCE * self._size:
                yield group
                group, held = [], 0
            group.append(part)
            held += len(part)
        yield group


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
        while near + size < len(text) and (match := _WITHIN.search(text, near)):
            begin = match.start() - _CONTEXT
            around = text[max(begin, 0) : match.start() + _CONTEXT]
            lengths = self._lengths[encode([around]).ids]
            ends = max(begin, 0) + np.cumsum(lengths)
            last = max(cuts, default=0)
            usable = [end for end in ends[:-1].tolist() if end > last and around.isascii() and _WITHIN.match(text, end)]
            if usable:
                cuts.append(min(usable, key=lambda end: abs(end - match.start())))
            near = match.start() + size
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
