"""Every document encoder keeps the port's promise."""

from __future__ import annotations

import pytest

from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.ports.testing.document_encoder import DocumentEncoderContract
from holdfast.ports.testing.tokenizer import HARD_TEXTS
from holdfast.ports.transform import Record
from tests.support.encoders import BackwardsTokenizer

HALF = Record("half of a pair: \ud800")


class TestTextDocumentEncoder(DocumentEncoderContract):
    examples = tuple(Record(text) for text in HARD_TEXTS if text)
    refused = (HALF,)
    is_masked = False

    @pytest.fixture
    def new(self):
        return lambda: TextDocumentEncoder(MemoryTokenizer())

    @pytest.fixture
    def others(self):
        return [TextDocumentEncoder(BackwardsTokenizer())]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.document_encoder.text import TextDocumentEncoder\n"
            "from holdfast.adapters.tokenizer.memory import MemoryTokenizer\n"
            "encoder = TextDocumentEncoder(MemoryTokenizer())"
        )

    def test_each_text_is_followed_by_end_of_text(self, encoder):
        """A document is the bytes of its text and the end, and nothing else."""
        encoded = encoder.encode([Record("ab"), Record("c")])
        assert encoded.ids.tolist() == [*b"ab", 256, *b"c", 256]
        assert encoder.fingerprint() == MemoryTokenizer().fingerprint()


class TestMemoryDocumentEncoder(DocumentEncoderContract):
    examples = tuple(map(Record, ("aB", "Abc", "a b c", "B", "ä")))
    refused = (HALF, Record("abc"))
    is_masked = True

    @pytest.fixture
    def new(self):
        return lambda: MemoryDocumentEncoder(MemoryTokenizer(), untrained=b"abc")

    @pytest.fixture
    def others(self):
        return [
            MemoryDocumentEncoder(MemoryTokenizer(), untrained=b"ab"),
            MemoryDocumentEncoder(BackwardsTokenizer(), untrained=b"abc"),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder\n"
            "from holdfast.adapters.tokenizer.memory import MemoryTokenizer\n"
            "encoder = MemoryDocumentEncoder(MemoryTokenizer(), untrained=b'abc')"
        )

    def test_ids_that_are_not_trained_on_are_masked(self, encoder):
        """The mask is false at exactly the ids that were named, and true at the end of the text."""
        assert encoder.encode([Record("aB")]).loss_mask.tolist() == [False, True, True]
