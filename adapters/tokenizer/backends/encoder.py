"""The interface of all backends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import numpy as np

from holdfast.domain.errors import DataError
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.unsignedinteger]


class Encoder(Protocol):
    """Encodes documents as ordinary text, from several threads at once."""

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``; raises ``DataError`` for half of a surrogate pair."""


class UnfitError(Exception):
    """A backend cannot give the ids of this tokenizer; the message is the reason, a clause without a full stop."""


def join_ids(parts: Sequence[Ids], dtype: np.dtype[np.unsignedinteger]) -> Encoded:
    """Return the ids of documents, one in each of ``parts``, as one flat array of ``dtype`` with offsets."""
    ids = np.concatenate([np.zeros(0, dtype), *parts], dtype=dtype, casting="same_kind")
    return Encoded(ids, offsets=np.cumsum([0, *map(len, parts)], dtype=np.int64))


def join(parts: Sequence[Encoded]) -> Encoded:
    """Return the documents of one or more parts, in their order."""
    ends = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return Encoded(
        np.concatenate([part.ids for part in parts]), offsets=np.concatenate([np.zeros(1, np.int64), *offsets])
    )


_SURROGATE = re.compile("[\ud800-\udfff]")


def check_surrogates(documents: Sequence[str]) -> None:
    """Raise ``DataError`` for the first document with half of a surrogate pair, which UTF-8 cannot encode."""
    for index, document in enumerate(documents):
        if match := _SURROGATE.search(document):
            msg = (
                f"document {index} of those to encode holds half of a surrogate pair (\\u{ord(match[0]):04x}) at "
                f"character {match.start()}, which is not valid Unicode: repair the document"
            )
            raise DataError(msg)
