"""Encoders of documents as bytes."""

from typing import final

from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer

BYTES = TextDocumentEncoder(MemoryTokenizer())

CAPITALS = MemoryDocumentEncoder(MemoryTokenizer(), untrained=range(ord("a"), ord("z") + 1))
"""Trains on everything but small letters."""


@final
class BackwardsTokenizer(ForwardingTokenizer):
    """Encodes as bytes, from the last to the first."""

    def __init__(self):
        super().__init__(MemoryTokenizer())

    def encode(self, documents):
        return super().encode([document[::-1] for document in documents])

    def fingerprint(self):
        return "backwards"
