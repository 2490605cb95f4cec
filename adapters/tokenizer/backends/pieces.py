"""Long documents in pieces: the same ids, in memory that does not grow with the document."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from adapters.tokenizer.backends.byte_level import GPT2_PATTERN, split_pattern
from adapters.tokenizer.backends.encoder import UnfitError, join
from ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenizers import Tokenizer

PIECE_CHARACTERS = 1 << 16
_AT_ONCE = 1 << 20  # characters: Hugging Face takes some hundred bytes for each

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
    """Return whether the ids of a text are those of its pieces, as ``pieces`` cuts it."""
    record = json.loads(core.to_str())
    try:
        pattern = split_pattern(record["pre_tokenizer"])
    except UnfitError:
        return False
    # NFC joins no two characters across a place where the second one is of ASCII or a mark of punctuation
    is_plain = (record["normalizer"] or {"type": "NFC"})["type"] == "NFC"
    return pattern in _SAFE_PATTERNS and is_plain and all(token["special"] for token in record["added_tokens"])


def pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces of at least ``size`` characters, as far as it has places for a cut."""
    start = 0
    while len(text) - start > size and (cut := _CUT.search(text, start + size)):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def encode_in_pieces(
    encode: Callable[[Sequence[str]], Encoded], documents: Sequence[str], size: int = PIECE_CHARACTERS
) -> Encoded:
    """Return the ids of ``documents``, which ``encode`` gets in pieces of about ``size`` characters, some at once."""
    cut = [list(pieces(document, size)) for document in documents]
    encoded = join([encode(group) for group in _groups([piece for of_one in cut for piece in of_one])])
    ends = list(accumulate(map(len, cut), initial=0))
    return Encoded(encoded.ids, encoded.offsets[np.array(ends)])


def _groups(parts: Sequence[str]) -> Iterator[Sequence[str]]:
    group: list[str] = []
    size = 0
    for part in parts:
        if group and size + len(part) > _AT_ONCE:
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part)
    yield group
