"""Byte-level BPE of Hugging Face in tiktoken's terms."""

from __future__ import annotations

from itertools import product

import pytest
import regex
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.tokenizer.backends.byte_level import (
    GPT2_PATTERN,
    LETTERS,
    group_plain,
    rank_tokens,
    split_pattern,
)
from holdfast.adapters.tokenizer.backends.encoder import UnfitError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}

# of Llama 3, and one whose brackets hold what parts alternatives elsewhere
LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
LLAMA3_PATTERN = rf"{LLAMA3_WORDS}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ALPHABET = "ab1'sST|(]cd \n\t.é東1\u00a0"
# every pair of bytes is a token: where a text is cut shows in its tokens
PAIRS = {bytes([byte]): byte for byte in range(256)}
PAIRS |= {bytes([a, b]): 256 + rank for rank, (a, b) in enumerate(product(set(ALPHABET.encode()), repeat=2))}
TRICKY_PATTERN = r"[|(a\]]+|b\|(?:c|\(d)|\w(?=1|2)|[\s\S]"


def model(merges, **options):
    words = [*LETTERS, *("".join(pair) for pair in merges)]
    return {
        "type": "BPE",
        "vocab": {word: 1000 - index for index, word in enumerate(words)},
        "merges": merges,
    } | options


def whole(word):
    return [word]


def test_ranks_follow_the_merges_not_the_ids():
    """A token's rank is the place of its first merge behind the bytes, and leads back to its id."""
    found = rank_tokens(model([("a", "b"), ("Ġ", "ab")]), whole)
    assert [found.by_token[token] for token in (b"\0", b"a", b"ab", b" ab")] == [0, 97, 256, 257]
    assert found.ids[[97, 256, 257]].tolist() == [903, 744, 743]
    assert found.lengths[[0, 256, 257]].tolist() == [1, 2, 3]


def test_tokens_that_merging_does_not_give_have_no_rank():
    """A token whose bytes Hugging Face never merges into it is not one that tiktoken may find."""
    found = rank_tokens(model([("b", "c"), ("a", "b"), ("ab", "c")]), lambda word: word.split("abc") if word else [])
    assert b"ab" in found.by_token
    assert b"abc" not in found.by_token


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (model([], type="Unigram"), "Unigram"),
        (model([], byte_fallback=True), "byte_fallback"),
        (model([], end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (model([("a", "b"), ("b", "c"), ("a", "b")]), "'ab' are not consecutive"),
        (model([("a", "東")]), "not made of bytes"),
        (model([], vocab={"a": 0}), "lacks 255 of the 256 bytes"),
        (model([], ignore_merges=True, vocab=model([])["vocab"] | {"abc": 7}), "ignores merges"),
    ],
)
def test_what_ranks_cannot_say_is_refused(changed, reason):
    """A model that merges otherwise is refused with the reason."""
    with pytest.raises(UnfitError, match=reason):
        rank_tokens(changed, whole)


def test_one_expression_splits_words():
    """ByteLevel splits as GPT-2 did, and a Split before it by its own expression."""
    assert split_pattern({**BYTE_LEVEL, "use_regex": True}) == GPT2_PATTERN
    assert split_pattern({"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]}) == r"\w+|\W+"


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        BYTE_LEVEL,
        {**BYTE_LEVEL, "use_regex": True, "add_prefix_space": True},
        {"type": "Sequence", "pretokenizers": [SPLIT, SPLIT, BYTE_LEVEL]},
        {"type": "Sequence", "pretokenizers": [{**SPLIT, "behavior": "Removed"}, BYTE_LEVEL]},
        {"type": "Sequence", "pretokenizers": [{**SPLIT, "invert": True}, BYTE_LEVEL]},
        {"type": "Sequence", "pretokenizers": [{**SPLIT, "pattern": {"String": "a"}}, BYTE_LEVEL]},
        {"type": "Sequence", "pretokenizers": [SPLIT, {**BYTE_LEVEL, "use_regex": True}]},
        {"type": "Metaspace"},
    ],
)
def test_any_other_way_to_split_is_refused(pre_tokenizer):
    """Two expressions, a space put in front or text thrown away cannot be said in one expression."""
    with pytest.raises(UnfitError, match="pre-tokenizer"):
        split_pattern(pre_tokenizer)


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, LLAMA3_PATTERN, TRICKY_PATTERN])
@given(text=st.text(st.sampled_from(ALPHABET), max_size=40))
def test_grouped_alternatives_split_as_before(pattern, text):
    """Grouping what looks nowhere around changes the expression, but no word."""
    grouped = group_plain(pattern)
    assert grouped != pattern
    assert regex.findall(grouped, text) == regex.findall(pattern, text)
    encodings = [
        tiktoken.Encoding("words", pat_str=each, mergeable_ranks=PAIRS, special_tokens={})
        for each in (pattern, grouped)
    ]
    assert encodings[0].encode_ordinary(text) == encodings[1].encode_ordinary(text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w+|\W+",  # nothing looks around: there is no slow machine
        r"a|b(?=c)|d|e",  # too few before what looks around
        r"(?i)a|b|c(?!d)",  # flags for all that follows
        r"(?x)a|b#|c\n|c(?!d)",
        r"(?<!a)b|c|d",
        r"(a)\1|b|c(?!d)",
    ],
)
def test_what_grouping_could_change_stays(pattern):
    """Flags for the whole expression stay where they are, and so do references and what looks around."""
    assert group_plain(pattern) == pattern
