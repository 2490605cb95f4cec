"""The documents that a run trains without, by their ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Self, final

import numpy as np

from holdfast.domain.data.row_index import RowIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def shown_id(document: int) -> str:
    """Return the id of a document as people read it: 16 hexadecimal digits."""
    return f"{document:016x}"


def id_of(text: str) -> int | None:
    """Return the id that ``shown_id`` showed, None for other text."""
    is_id = len(text) == 16 and all(digit in "0123456789abcdefABCDEF" for digit in text)
    return int(text, 16) if is_id else None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Exclusion:
    """The ids of documents to train without, uint64 (documents,), sorted and unique.

    The rows and their order stay as they are without an exclusion: the pieces of excluded documents are removed from
    the rows, which become shorter.
    """

    ids: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    @classmethod
    def of(cls, ids: Iterable[int]) -> Self:
        """Return the exclusion of the documents with these ``ids``, in any order."""
        return cls(np.unique(np.fromiter(ids, np.uint64)))

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.ids)

    @property
    def digest(self) -> str:
        """Return a short text that identifies the ids, empty if there are none."""
        return blake2b(self.ids.astype("<u8").tobytes(), digest_size=8).hexdigest() if len(self) else ""

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return bool (documents,): whether each document, by its uint64 id, is excluded."""
        if not len(self):
            return np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self.ids, hashes), len(self) - 1)
        return np.equal(self.ids[places], hashes)

    def shorten(self, index: RowIndex, begins: NDArray[np.int64], hashes: NDArray[np.uint64]) -> RowIndex:
        """Return ``index`` without the pieces of excluded documents; rows may have no piece then.

        The documents begin at ``begins`` int64 of the token ids that ``index`` describes, in increasing order;
        ``hashes`` uint64 are their ids.
        """
        excluded = self.holds(hashes)
        if not excluded.any():
            return index
        kept = ~excluded[document_of(index.starts, begins)]
        rows = np.append(0, np.cumsum(kept))[index.rows]
        return RowIndex(index.starts[kept], index.lengths[kept], rows)


NO_EXCLUSION = Exclusion()


def document_of(starts: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the document that holds each of the tokens ``starts``; documents begin at ``begins``."""
    return np.searchsorted(begins, starts, side="right") - 1
