"""Tokenizers whose tokens do not hold the bytes of a text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import models, normalizers, pre_tokenizers

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.data.tokenizer_difference import uncounted_text
from tests.support.small_tokenizers import sentencepiece_tokenizer, small_tokenizer


def words():
    letters = [f"{mark}{letter}" for mark in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz.,"]
    vocabulary = {token: number for number, token in enumerate(["[UNK]", "</s>", *letters])}
    core = Core(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.add_special_tokens(["[UNK]", "</s>"])
    return core


@pytest.mark.parametrize(
    "tokenizer",
    [
        MemoryTokenizer(),
        HuggingfaceTokenizer(small_tokenizer("gpt-2").to_str(), backend="huggingface"),
        HuggingfaceTokenizer(sentencepiece_tokenizer().to_str(), backend="huggingface"),
    ],
)
def test_nothing_is_said_of_a_tokenizer_that_keeps_the_text(tokenizer):
    """Bytes, and pieces with a space before the text, count the bytes of a document."""
    assert uncounted_text(tokenizer) is None


def test_a_tokenizer_that_discards_text_is_told():
    """The tokens of words in lower case hold no spaces and no umlauts, and the sentence has the numbers of bytes."""
    tokenizer = HuggingfaceTokenizer(words().to_str(), backend="huggingface")
    assert "hold 30 bytes of the 50 of" in uncounted_text(tokenizer)
