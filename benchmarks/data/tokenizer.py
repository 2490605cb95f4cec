"""A tokenizer that has met one letter of text, and not the sample on which a run compares it with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Tokenizer as Core
from typing_extensions import override

from holdfast.adapters.tokenizer.backends.backend_selection import FAST, FallbackEncoder
from holdfast.adapters.tokenizer.backends.huggingface import HuggingfaceEncoder
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.adapters.tokenizer.backends.encoder import Encoder
    from holdfast.ports.tokenizer import Encoded


FIRST_TEXT = "\u00e9"  # not ASCII, so that imports and tables of characters that are made at first need are there


@final
class NewTokenizer(ForwardingTokenizer):
    """Encodes with ``backend`` and the guard that a run puts before it; all else is Hugging Face's.

    The comparison at a run's start has gigatoken encode each token of the vocabulary, and gigatoken remembers words:
    behind it, with the clock still at nought, no tokenizer is cold.
    """

    def __init__(self, path: str, backend: str) -> None:
        super().__init__(HuggingfaceTokenizer.load(path, backend="huggingface"))
        core = Core.from_file(path)
        core.encode_special_tokens = True
        dtype: np.dtype[np.unsignedinteger] = np.dtype(np.uint16 if self.vocabulary_size <= 1 << 16 else np.uint32)
        self._encoder: Encoder = HuggingfaceEncoder(core, dtype)
        if backend in FAST:
            self._encoder = FallbackEncoder(FAST[backend](core, dtype), self._encoder, dtype, _refuse)
        self._encoder.encode([FIRST_TEXT])

    @override
    def encode(self, documents: Sequence[str]) -> Encoded:
        return self._encoder.encode(documents)


def _refuse(reason: str) -> None:
    raise SystemExit(reason)
