"""Encodes by a fast backend, and by the reference where the fast one is not safe."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Regex, pre_tokenizers

from holdfast.adapters.tokenizer.backends.encoder import join, join_ids
from holdfast.adapters.tokenizer.surrogates import check_surrogates
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from holdfast.adapters.tokenizer.backends.encoder import Encoder
    from holdfast.ports.tokenizer import Encoded


# planes 4 to 13 and the rest of 14 are empty; 15 and 16 are private use for good
_EMPTY = slice(0x40000, 0xF0000)
_ASSIGNABLE = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
_FIRST_UNSETTLED = 0x378  # earlier characters were assigned long ago
_BUILDING = Lock()


@final
class FallbackEncoder:
    """Encodes with ``fast``, but with ``reference`` the documents that ``fast`` fails on or may encode differently.

    Documents with characters on which versions of Unicode differ may be encoded differently. ``dtype`` is that of the
    ids, and ``failed`` receives the first failure.
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
        _is_unsettled()  # made here and not after the first document: it takes a while, once a process

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        try:
            return self._encode_parted(documents)
        except DataError:
            check_surrogates(documents)  # so that the error counts along all documents
            raise

    def _encode_parted(self, documents: Sequence[str]) -> Encoded:
        unsettled = _find_unsettled(documents)
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


def _find_unsettled(documents: Sequence[str]) -> list[int]:
    """Return the indexes of documents with characters that this Python or ``tokenizers`` calls unassigned.

    Whether such a character is a letter depends on the version of Unicode that a library was built with: gigatoken
    0.10 has 17, tokenizers 0.23 has 16. Assigned characters keep their category in later versions.
    """
    others = [index for index, text in enumerate(documents) if not text.isascii()]
    if not others:
        return []
    together = "".join([documents[index] for index in others])  # all at once: most documents have none
    points = np.frombuffer(together.encode("utf-32-le", "surrogatepass"), "<u4")
    places = np.flatnonzero(points >= _FIRST_UNSETTLED)
    places = places[_is_unsettled()[points[places]]]
    if not len(places):
        return []
    ends = list(accumulate(len(documents[index]) for index in others))
    return [others[number] for number in np.unique(np.searchsorted(ends, places, side="right")).tolist()]


def _is_unsettled() -> NDArray[np.bool_]:
    """Return for each code point whether libraries may disagree on it: bool (0x110000,)."""
    with _BUILDING:  # it takes a quarter of a second, once a process
        return _build_table()


@cache
def _build_table() -> NDArray[np.bool_]:
    everything = "".join(chr(point) for points in _ASSIGNABLE for point in points)
    unassigned = pre_tokenizers.Split(Regex(r"\P{Cn}+"), "removed").pre_tokenize_str(everything)
    theirs = "".join(part for part, _ in unassigned)
    ours = "".join(character for character in everything if unicodedata.category(character) == "Cn")
    table = np.zeros(0x110000, np.bool_)
    table[_EMPTY] = True
    table[list(map(ord, everything))] = False
    table[list(map(ord, theirs + ours))] = True
    table.flags.writeable = False
    return table
