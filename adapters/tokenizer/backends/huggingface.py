"""The reference encoder, whose ids are correct by definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.adapters.tokenizer.backends.encoder import check_surrogates, join_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from holdfast.ports.tokenizer import Encoded


@final
class HuggingfaceEncoder:
    """Encodes with ``core`` itself, into ids of ``dtype``."""

    def __init__(self, core: Tokenizer, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._core = core
        self._dtype = dtype

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        try:
            encodings = self._core.encode_batch_fast(list(documents), add_special_tokens=False)
        except TypeError:
            check_surrogates(documents)
            raise
        return join_ids([np.array(encoding.ids, self._dtype) for encoding in encodings], self._dtype)
