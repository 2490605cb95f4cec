"""Encoders of documents as bytes."""

from typing import final

import numpy as np

from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from holdfast.ports.tokenizer import Encoded

BYTES = TextDocumentEncoder(MemoryTokenizer())

CAPITALS = MemoryDocumentEncoder(MemoryTokenizer(), untrained=range(ord("a"), ord("z") + 1))
"""Trains on everything but small letters."""

CONSONANTS = MemoryDocumentEncoder(MemoryTokenizer(), untrained=b"aeiou ")
"""Trains on everything but vowels and spaces."""


@final
class WordsEncoder(DocumentEncoder):
    """Makes a document of each word of a record, and trains on its last byte."""

    def encode(self, records):
        words = [record.text.split() for record in records]
        flat = [word.encode() for some in words for word in some]
        ids = np.frombuffer(b"".join(flat), np.uint8).astype(np.uint16)
        offsets = np.cumsum([0, *map(len, flat)], dtype=np.int64)
        mask = np.zeros(len(ids), np.bool_)
        mask[offsets[1:] - 1] = True
        return Encoded(ids, offsets, mask, np.array([*map(len, words)], np.int64))

    def fingerprint(self):
        return "words"


@final
class BackwardsTokenizer(ForwardingTokenizer):
    """Encodes as bytes, from the last to the first."""

    def __init__(self):
        super().__init__(MemoryTokenizer())

    def encode(self, documents):
        return super().encode([document[::-1] for document in documents])

    def fingerprint(self):
        return "backwards"


@final
class OddIdsEncoder(DocumentEncoder):
    """Encodes as ``inner`` does, and trains on odd ids."""

    def __init__(self, inner):
        self._inner = inner

    def encode(self, records):
        encoded = self._inner.encode(records)
        return Encoded(encoded.ids, encoded.offsets, encoded.ids % 2 == 1)

    def fingerprint(self):
        return f"odd ids of {self._inner.fingerprint()}"
