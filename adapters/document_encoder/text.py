"""Documents of plain text, every token of which is trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.domain.data.token_ids import spread_bytes, utf8_sizes
from holdfast.domain.errors import DataError
from holdfast.ports.document_encoder import CountsText, DocumentEncoder
from holdfast.ports.tokenizer import Encoded, ids_around

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.ports.tokenizer import Tokenizer
    from holdfast.ports.transform import Record


@final
class TextDocumentEncoder(DocumentEncoder, CountsText):
    """Encodes the text of a record by ``tokenizer``, between the special ids that it puts around a document."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @override
    def encode(self, records: Sequence[Record]) -> Encoded:
        encoded = self._encode([record.text for record in records])
        prefix, suffix = ids_around(self._tokenizer)
        offsets = encoded.offsets + np.arange(len(records) + 1) * (len(prefix) + len(suffix))
        begins, ends = offsets[:-1] + len(prefix), offsets[1:] - len(suffix)
        ids = np.empty(offsets[-1], encoded.ids.dtype)
        for part, begin, end in zip(encoded, begins.tolist(), ends.tolist(), strict=True):
            ids[begin:end] = part
        for number, token in enumerate(prefix):
            ids[offsets[:-1] + number] = token
        for number, token in enumerate(suffix):
            ids[ends + number] = token
        return Encoded(ids, offsets)

    @override
    def text_bytes(self, records: Sequence[Record], encoded: Encoded) -> NDArray[np.int64]:
        sizes = utf8_sizes([record.text for record in records])
        return spread_bytes(self._tokenizer.token_bytes[encoded.ids], encoded.offsets, sizes)

    @override
    def fingerprint(self) -> str:
        return self._tokenizer.fingerprint()

    def _encode(self, texts: Sequence[str]) -> Encoded:
        try:
            return self._tokenizer.encode(texts)
        except DataError as error:  # seldom enough that looking for half of a surrogate pair before would not pay
            if all(map(_is_unicode, texts)):
                raise
            msg = "holds half of a surrogate pair, which is no Unicode text: repair it"
            raise DataError(msg) from error


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
