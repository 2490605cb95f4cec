"""Documents of a prompt and a completion, of which the completion is trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.domain.data.token_ids import spread_bytes, utf8_sizes
from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import completion_from
from holdfast.ports.document_encoder import CountsText, DocumentEncoder
from holdfast.ports.tokenizer import Encoded, ids_around

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.ports.tokenizer import Tokenizer
    from holdfast.ports.transform import Record

_FORMAT = 1


@final
class CompletionDocumentEncoder(DocumentEncoder, CountsText):
    """Encodes the prompt and the completion in the text of a record by ``tokenizer``, between its special ids.

    Each is encoded alone, as the prompt is when the model continues it. The completion and the ids that end a document
    are trained on.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @override
    def encode(self, records: Sequence[Record]) -> Encoded:
        pairs = [_pair_in(record.text) for record in records]
        if any(not completion for _, completion in pairs):
            msg = "has an empty completion, so nothing could be trained on: leave it out"
            raise DataError(msg)
        encoded = self._tokenizer.encode([text for pair in pairs for text in pair])
        parts = list(encoded)
        prefix, suffix = (np.array(ids, encoded.ids.dtype) for ids in ids_around(self._tokenizer))
        prompts = [np.concatenate([prefix, prompt]) for prompt in parts[::2]]
        documents = [np.concatenate([*pair, suffix]) for pair in zip(prompts, parts[1::2], strict=True)]
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        masks = [np.arange(len(document)) >= len(prompt) for document, prompt in zip(documents, prompts, strict=True)]
        ids = np.concatenate([encoded.ids[:0], *documents])
        return Encoded(ids, offsets, np.concatenate([np.zeros(0, np.bool_), *masks]))

    @override
    def text_bytes(self, records: Sequence[Record], encoded: Encoded) -> NDArray[np.int64]:
        assert encoded.loss_mask is not None, "completions are trained on, prompts are not"
        sizes = utf8_sizes([text for record in records for text in _pair_in(record.text)])
        prompts = np.diff(np.append(0, np.cumsum(~encoded.loss_mask))[encoded.offsets])
        starts = encoded.offsets[:-1]
        bounds = np.append(np.stack([starts, starts + prompts], 1).reshape(-1), encoded.offsets[-1])
        return spread_bytes(self._tokenizer.token_bytes[encoded.ids], bounds, sizes)

    @override
    def fingerprint(self) -> str:
        return f"completion {_FORMAT} {self._tokenizer.fingerprint()}"


def _pair_in(text: str) -> tuple[str, str]:
    try:
        return completion_from(text)
    except DataError as error:
        msg = f"is no prompt with a completion: {error}"
        raise DataError(msg) from error
