"""Checks on a sample that an encoder gives the ids of the reference."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from holdfast.adapters.tokenizer.backends.encoder import Encoder
    from holdfast.ports.tokenizer import Encoded

_WRITTEN = (
    "",
    " ",
    "\ufeffbegins with a mark, ends with none",
    "It's I'M we'RE they've he'd YOU'LL don't 'tis ''s 'S's'\u017f \u2019s rock'n'roll",
    "for i in range(10):\n\t\tprint(i ** 2)  # 100,000.5e-3\n\n\n    return {'a': [1, 2]}\r\n",
    "mixed\nlines\r\nof\rall\n\rkinds \r\n\r\n \n  \n\t \x0b\x0c\x1c\x85\u2028\u2029 end  ",
    " two  three   four    tab\t\ttabs \t mixed\t a \u00a0 b\u00a0\u00a0c \u3000\u2003\u200b\u202f d",
    "1 12 123 1234 12345 3.14159 1e10 0x1F 1,000,000 \u0663\u0664 \u00b2\u00bd \u2167 \u4e09\u5341 v1.2.3-rc4",
    "Gr\u00fc\u00dfe e\u0301 \u00e9 \ufb01 \u2126 n\u0303a \u0301 \u0915\u094d\u0937",
    "\u0e01\u0e33 \u1100\u1161\u11a8 \uac01 \u1e9b\u0323 \u0327c \u0345\u03b1",
    "\u6771\u4eac\u3067\u30c6\u30b9\u30c8\u3002\u4f60\u597d\uff0c\u4e16\u754c\uff01 \ud55c\uad6d\uc5b4 \U00020000",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c \u200fdef\u200e \u064b\u0651",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea #\ufe0f\u20e3 \U0001fae8",
    "\ufffd\ufffe\uffff\ufdd0\U0001fffe\U0010ffff\ue000\U000f0000 a\ufffeb",
    "<|endoftext|> a<|endoftext|>b </s><s> <eos> [SEP][CLS] <|im_start|>x<|im_end|> <0x41> \u2581a <pad> <unk>",
    "http://a.b/c?d=e&f=g#h snake_case camelCase CONSTANT_CASE HTTPServer iPhone \u01c5 \u02b0 __init__",
    "!!! ??? ... --- === *** ((())) [[]] {{}} <<>> //// \\\\ |&|&| ~`^%$#@ \u20ac\u00a3 \u2026\u2014",
)
_LONG = tuple(text * (10_000 // len(text)) for text in (*"a =\n\t0\u00e9\u4e2d", "ab", "\r\n", " \n", "1a", "!?", " a"))


def sample_documents(core: Tokenizer) -> list[str]:
    """Return texts that are hard to split and merge, and each token of ``core``, alone and among other tokens."""
    added = [token.content for token in core.get_added_tokens_decoder().values()]
    literal = [f"{token}|a{token}b| {token} |{token}{token}\n{token}\u0301" for token in added]
    tokens = [text for text in _spelled(core) if "\ufffd" not in text]
    shuffled = np.random.default_rng(0).permutation(len(tokens))
    mixed = ["".join(tokens[index] for index in shuffled[at : at + 16]) for at in range(0, len(tokens), 16)]
    return [*_WRITTEN, *_LONG, *_characters(), *literal, *tokens, *mixed]


def find_difference(reference: Encoder, candidate: Encoder, documents: Sequence[str]) -> str | None:
    """Return a clause about the first difference between ``candidate`` and ``reference``, None if there is none."""
    expected, found = reference.encode(documents), candidate.encode(documents)
    if _is_equal(expected, found):
        return None
    pairs = zip(documents, expected, found, strict=True)
    for text, right, wrong in pairs:
        if not np.array_equal(right, wrong):
            common = min(len(right), len(wrong))
            at = next((place for place in range(common) if right[place] != wrong[place]), common)
            return (
                f"for {text[:40]!r} it gives {len(wrong)} ids, Hugging Face {len(right)}, and from id {at} on "
                f"{wrong[at : at + 4].tolist()} instead of {right[at : at + 4].tolist()}"
            )
    return "its offsets or the type of its ids differ"


def _is_equal(expected: Encoded, found: Encoded) -> bool:
    is_alike = (found.ids.dtype, found.offsets.dtype) == (expected.ids.dtype, expected.offsets.dtype)
    return is_alike and np.array_equal(found.ids, expected.ids) and np.array_equal(found.offsets, expected.offsets)


def _spelled(core: Tokenizer) -> list[str]:
    ids = sorted(core.get_vocab(with_added_tokens=False).values())
    return list(core.decode_batch([[number] for number in ids], skip_special_tokens=True))


@cache
def _characters() -> tuple[str, ...]:
    # the first and the last of each run of one category: errors of character tables are at their edges
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]
    kinds = [unicodedata.category(chr(point)) for point in points]
    edges = {place for place, (one, next_one) in enumerate(pairwise(kinds)) if one != next_one}
    chosen = {*range(0x300), *(points[place] for place in edges), *(points[place + 1] for place in edges)}
    return tuple(f"a{c}a{c}{c}1{c}1 {c} .{c}.{c}\n{c} a'{c}" for c in map(chr, sorted(chosen)))
