"""A long document is encoded in pieces, with the ids that it has as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from holdfast.adapters.tokenizer.backends.backend_selection import ChosenEncoder
from holdfast.adapters.tokenizer.backends.huggingface import HuggingfaceEncoder
from holdfast.adapters.tokenizer.backends.text_pieces import LongWords, TextPieces, can_be_cut, pieces
from holdfast.domain.errors import DataError

UINT16 = np.dtype(np.uint16)
WORDS, REST = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
SPLITS = {"gpt2": None, "llama3": WORDS + r"\p{N}{1,3}" + REST, "qwen": WORDS + r"\p{N}" + REST}
SAMPLE = "the theory's then, they'RE (there) 12345 123.  \r\n\n  x_y // 東京、東京 über für \t<a href='b'>don't</a>" * 3
ATOMS = [
    *"ab1 '\n\r\t.,/_-(<東か、\uff01é\u0301\u0338\u3099\u2019\u00a0ǅ²",
    "  ",
    "'s",
    "'RE",
    "123",
    "\r\n",
    " the",
    "über",
]

LETTERS = ["a", "aaaaaaaa", "ab", "ba", "the", "THE", "theory", "x", "ü", "7", "'re"]


def tokenizer(name):
    """Return a small tokenizer that splits words as the one called ``name``."""
    core = Tokenizer(models.BPE())
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=SPLITS[name] is None)
    split = SPLITS[name] and pre_tokenizers.Split(Regex(SPLITS[name]), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, last]) if split else last
    core.normalizer = normalizers.NFC() if name == "qwen" else None
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    core.train_from_iterator([SAMPLE], trainer)
    return core


@pytest.mark.parametrize("name", SPLITS)
@settings(deadline=None, max_examples=300)
@given(texts=st.lists(st.lists(st.sampled_from(ATOMS), max_size=30).map("".join), max_size=3), size=st.integers(1, 8))
def test_pieces_have_the_ids_of_the_whole(name, texts, size):
    """Wherever a text is cut, the ids of its pieces are those of the text, and each document keeps its own."""
    core = CORES[name]
    assert can_be_cut(core)
    encoder = HuggingfaceEncoder(core, UINT16)
    whole, cut = encoder.encode(texts), TextPieces(core, size).encode(encoder.encode, texts)
    assert cut.ids.tolist() == whole.ids.tolist()
    assert cut.offsets.tolist() == whole.offsets.tolist()
    assert all("".join(pieces(text, size)) == text for text in texts)


@pytest.mark.parametrize("name", SPLITS)
@settings(deadline=None, max_examples=300)
@given(
    atoms=st.lists(st.sampled_from(LETTERS), max_size=60),
    prefix=st.sampled_from(["", " ", "'", '"', "'r", "\n"]),
    size=st.integers(1, 8),
)
def test_a_long_word_has_the_ids_of_the_whole(name, atoms, prefix, size):
    """A word longer than a piece is cut between two tokens, and the ids are those of the uncut word."""
    text = prefix + "".join(atoms)
    encoder = HuggingfaceEncoder(CORES[name], UINT16)
    whole = encoder.encode([text]).ids.tolist()
    assert LongWords(CORES[name]).encode(encoder.encode, text, size).tolist() == whole


CORES = {name: tokenizer(name) for name in SPLITS}


class Narrow:
    """An encoder that takes no more than 2 Mi characters at once."""

    def __init__(self, core, dtype):
        self._encoder = HuggingfaceEncoder(core, dtype)

    def encode(self, documents):
        if sum(map(len, documents)) > 1 << 21:
            msg = "too much at once"
            raise MemoryError(msg)
        return self._encoder.encode(documents)


def test_a_document_without_a_line_end_is_encoded_in_pieces():
    """A text of 4 MB in one line never reaches an encoder as a whole."""
    encoder = ChosenEncoder(CORES["gpt2"], UINT16, backend="narrow", builders={"narrow": Narrow})
    assert len(encoder.encode(["the theory " * 400_000]).offsets) == 2


def test_what_is_no_unicode_is_named_by_its_document():
    """Half of a surrogate pair in a document that is cut is told with the number of the document, not of a piece."""
    encoder = ChosenEncoder(CORES["gpt2"], UINT16, backend="huggingface")
    with pytest.raises(DataError, match="document 1 "):
        encoder.encode(["good", "the theory " * 20_000 + "\ud800"])


@pytest.mark.parametrize("text", ["a", "theory", "TheOryXx"])
def test_a_word_of_megabytes_is_encoded_in_parts(text):
    """A single word of 4 MB never reaches an encoder as a whole."""
    text *= 4_000_000 // len(text)
    encoder = ChosenEncoder(CORES["gpt2"], UINT16, backend="narrow", builders={"narrow": Narrow})
    assert CORES["gpt2"].decode(encoder.encode([text]).ids.tolist()) == text


@pytest.mark.parametrize("change", ["normalizer", "pattern", "added"])
def test_another_tokenizer_is_not_cut(change):
    """A tokenizer whose words may reach over such a place gets its documents whole."""
    core = tokenizer("gpt2")
    if change == "normalizer":
        core.normalizer = normalizers.Replace("a,", "b")
    elif change == "pattern":
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\w+, \w+|."), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        )
    else:
        core.add_tokens(["a, b"])
    assert not can_be_cut(core)
