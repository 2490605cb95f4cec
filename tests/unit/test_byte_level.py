"""Byte-level BPE of Hugging Face in tiktoken's terms."""

from __future__ import annotations

import pytest

from adapters.tokenizer.backends.byte_level import GPT2_PATTERN, LETTERS, rank_tokens, split_pattern
from adapters.tokenizer.backends.encoder import UnfitError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}


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
        (model([("a", "b"), ("b", "c"), ("a", "b")]), "'ab' do not stand together"),
        (model([("a", "東")]), "not made of bytes"),
        (model([], vocab={"a": 0}), "lacks 255 of the 256 bytes"),
        (model([], ignore_merges=True, vocab=model([])["vocab"] | {"abc": 7}), "whole"),
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
