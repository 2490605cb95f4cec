"""Documents of text with a loss mask that leaves out some ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.domain.errors import DataError
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.tokenizer import Encoded, ids_around

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from holdfast.ports.tokenizer import Tokenizer
    from holdfast.ports.transform import Record

_FORMAT = 1


@final
class MemoryDocumentEncoder(DocumentEncoder):
    """Encodes the text of a record by ``tokenizer``, between its special ids; ids in ``untrained`` are not targets.

    A text in which every id is in ``untrained`` is refused: it would train on end-of-text alone.
    """

    def __init__(self, tokenizer: Tokenizer, *, untrained: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._untrained = sorted(untrained)

    @override
    def encode(self, records: Sequence[Record]) -> Encoded:
        prefix, suffix = ids_around(self._tokenizer)
        documents = [np.array([*prefix, *ids, *suffix], ids.dtype) for ids in self._ids_of(records)]
        ids = np.concatenate([np.zeros(0, np.uint16), *documents])
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        return Encoded(ids, offsets, ~np.isin(ids, self._untrained))

    @override
    def fingerprint(self) -> str:
        return f"without {self._untrained} {_FORMAT} {self._tokenizer.fingerprint()}"

    def _ids_of(self, records: Sequence[Record]) -> Sequence[NDArray[np.unsignedinteger]]:
        encoded = list(self._tokenizer.encode([record.text for record in records]))
        if any(np.isin(ids, self._untrained).all() for ids in encoded):
            msg = "has no token that is trained on: leave it out"
            raise DataError(msg)
        return encoded
