"""Encoders of documents as bytes."""

from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer

BYTES = TextDocumentEncoder(MemoryTokenizer())

CAPITALS = MemoryDocumentEncoder(MemoryTokenizer(), untrained=range(ord("a"), ord("z") + 1))
"""Trains on everything but small letters."""
