"""Document boundaries and hashes in a flat array of token ids."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.token_store.folder_operations import bytes_of
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


@final
class DocumentScanner:
    """Finds documents in ids that are fed piece by piece; a document ends after ``end_of_text`` or at a given end.

    A document's hash is the BLAKE2b of its ids as little-endian uint32, without end-of-text; its 8 bytes are read as a
    uint64. The hash therefore does not depend on the type of the stored ids or on whether the file has the end-of-text.
    """

    def __init__(self, end_of_text: int) -> None:
        self._end_of_text = end_of_text
        self._num_tokens = 0
        self._last_end = 0
        self._ends: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._hashes: list[bytes] = []
        self._document = blake2b(digest_size=8)
        self._content = blake3()

    def feed(self, ids: NDArray[np.integer[Any]], ends: NDArray[np.int64] | None = None) -> None:
        """Add the next ids, of any integer dtype, (num_tokens,), all from 0 to 2**32 - 1.

        ``ends`` are those of their documents; None finds them.
        """
        wide = ids.astype("<u4", copy=False)
        data = bytes_of(wide)
        is_end = wide == self._end_of_text
        ends = np.flatnonzero(is_end) + 1 if ends is None else ends
        begin = 0
        for end, is_ended in zip(ends.tolist(), is_end[ends - 1].tolist(), strict=True):
            self._document.update(data[4 * begin : 4 * end - 4 * is_ended])
            self._close()
            begin = end
        self._document.update(data[4 * begin :])
        self._content.update(data)
        self._ends.append(ends + self._num_tokens)
        self._num_tokens += len(wide)
        if len(ends):
            self._last_end = int(self._ends[-1][-1])

    def finish(self) -> Arrays:
        """Return ``offsets`` int64, ``hashes`` uint64 and ``content``, a hash of all ids, uint8 (16,)."""
        ends = [*self._ends]
        if self._last_end < self._num_tokens:
            self._close()
            ends.append(np.array([self._num_tokens], np.int64))
        return {
            "offsets": np.concatenate(ends),
            "hashes": np.frombuffer(b"".join(self._hashes), "<u8"),
            "content": np.frombuffer(self._content.digest(length=16), np.uint8),
        }

    def _close(self) -> None:
        self._hashes.append(self._document.digest())
        self._document = blake2b(digest_size=8)


def check_ids(ids: NDArray[np.integer[Any]], vocabulary_size: int, place: Callable[[int], str]) -> None:
    """Raise ``DataError`` unless all ids are in ``[0, vocabulary_size)``.

    ``ids`` are of any integer dtype, (num_tokens,); ``place(n)`` names the n-th id, counted from 0.
    """
    if not ids.size or (int(ids.max()) < vocabulary_size and int(ids.min()) >= 0):
        return
    first = int(np.argmax((ids >= vocabulary_size) | (ids < 0)))
    msg = (
        f"{place(first)} is {int(ids[first])}, and the vocabulary has the ids 0 to {vocabulary_size - 1}: "
        f"choose the tokenizer that made the file, and the type it was written with (data.dtype)"
    )
    raise DataError(msg)


def narrowest(vocabulary_size: int) -> np.dtype[Any]:
    """Return the type that holds all ids: uint16 or uint32."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)
