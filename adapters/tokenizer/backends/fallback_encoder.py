"""Encodes by a fast backend, and by the reference where the fast one is not safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.adapters.tokenizer.backends.encoder import join, join_ids
from holdfast.adapters.tokenizer.backends.unicode import find_unsettled, is_unsettled
from holdfast.adapters.tokenizer.surrogates import check_surrogates
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.adapters.tokenizer.backends.encoder import Encoder
    from holdfast.ports.tokenizer import Encoded


@final
class FallbackEncoder:
    """Encodes with ``fast``, but with ``reference`` the documents that ``fast`` fails on or may encode differently.

    The latter have characters on which versions of Unicode differ. ``dtype`` is that of the ids, and ``failed``
    receives the first failure.
    """

    def __init__(
        self,
        fast: Encoder,
        reference: Encoder,
        dtype: np.dtype[np.unsignedinteger],
        failed: Callable[[str], object],
    ) -> None:
        self._fast = fast
        self._reference = reference
        self._dtype = dtype
        self._failed = failed
        self._has_failed = False
        is_unsettled()  # made here and not after the first document: it takes a while, once a process

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        try:
            return self._encode_parted(documents)
        except DataError:
            check_surrogates(documents)  # so that the error counts along all documents
            raise

    def _encode_parted(self, documents: Sequence[str]) -> Encoded:
        unsettled = find_unsettled(documents)
        if not unsettled:
            return self._encode_settled(documents)
        rare = set(unsettled)
        rest = self._encode_settled([text for index, text in enumerate(documents) if index not in rare])
        slow = self._reference.encode([documents[index] for index in unsettled])
        fast_parts, slow_parts = iter(rest), iter(slow)
        parts = [next(slow_parts if index in rare else fast_parts) for index in range(len(documents))]
        return join_ids(parts, self._dtype)

    def _encode_settled(self, documents: Sequence[str]) -> Encoded:
        try:
            encoded = self._fast.encode(documents)
            self._check_shape(encoded, len(documents))
        except BaseException as error:
            if _is_failure(error):
                return self._rescue(documents, error)
            raise
        return encoded

    def _rescue(self, documents: Sequence[str], error: BaseException) -> Encoded:
        if len(documents) > 1:
            half = len(documents) // 2
            return join([self._encode_settled(part) for part in (documents[:half], documents[half:])])
        if not self._has_failed:
            self._has_failed = True
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._failed(f"it fails on a document of {sum(map(len, documents)):,} characters ({reason})")
        return self._reference.encode(documents)

    def _check_shape(self, encoded: Encoded, num_documents: int) -> None:
        if (encoded.ids.dtype, encoded.offsets.dtype) != (self._dtype, np.dtype(np.int64)):
            msg = f"its ids are {encoded.ids.dtype} and its offsets {encoded.offsets.dtype}"
            raise ValueError(msg)
        if (len(encoded.offsets), encoded.offsets[-1]) != (num_documents + 1, len(encoded.ids)):
            msg = f"it gives {len(encoded.offsets) - 1} of {num_documents} documents or loses some of their ids"
            raise ValueError(msg)


def _is_failure(error: BaseException) -> bool:
    # a panic in Rust reaches Python as PanicException, which is no Exception
    is_ours = isinstance(error, (DataError, MemoryError))
    return (isinstance(error, Exception) and not is_ours) or type(error).__name__ == "PanicException"
