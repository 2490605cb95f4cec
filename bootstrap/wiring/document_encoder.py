"""Builds the encoder that turns records into documents of token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.document_encoder.text import TextDocumentEncoder

if TYPE_CHECKING:
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.tokenizer import Tokenizer


def build_encoder(_data: FeedSettings, tokenizer: Tokenizer) -> DocumentEncoder:
    """Return the encoder of plain text, which ends each document with end-of-text."""
    return TextDocumentEncoder(tokenizer)
