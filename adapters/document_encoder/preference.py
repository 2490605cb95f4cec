"""Documents of preferences, each a chosen and a rejected conversation."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.domain.data.preference_pairs import MaskedIds, joined_pair
from holdfast.domain.errors import DataError
from holdfast.domain.training.preference_record import Preference, preference_from
from holdfast.domain.training.reply_spans import without_reasoning
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer
    from holdfast.ports.transform import Record

_FORMAT = 1


@final
class PreferenceDocumentEncoder(DocumentEncoder):
    """Encodes the preference in the text of a record by ``template``, which belongs to ``tokenizer``.

    A document is the chosen conversation followed by the rejected one, in the form of ``joined_pair``. The last reply
    of each is compared, with its reasoning if ``keeps_reasoning``.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, *, keeps_reasoning: bool = True) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._keeps_reasoning = keeps_reasoning
        self._dtype = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32

    @override
    def encode(self, records: Sequence[Record]) -> Encoded:
        preferences = [self._preference_in(record.text) for record in records]
        sides = [side for each in preferences for side in (each.chosen, each.rejected)]
        encoded = self._template.encode_training(sides, "last_assistant")
        # of the last reply there is one document
        last = [MaskedIds(documents[-1].ids, documents[-1].loss_mask) for documents in encoded]
        pairs = [joined_pair(*last[first : first + 2]) for first in range(0, len(last), 2)]
        ids = np.concatenate([np.zeros(0, self._dtype), *(each.ids.astype(self._dtype) for each in pairs)])
        mask = np.concatenate([np.zeros(0, np.bool_), *(each.loss_mask for each in pairs)])
        return Encoded(ids, np.cumsum([0, *(len(each.ids) for each in pairs)], dtype=np.int64), mask)

    @override
    def fingerprint(self) -> str:
        content = ["preference", _FORMAT, self._tokenizer.fingerprint(), self._template.fingerprint()]
        return blake2b(json.dumps([*content, self._keeps_reasoning]).encode(), digest_size=16).hexdigest()

    def _preference_in(self, text: str) -> Preference:
        try:
            pair = preference_from(text)
        except DataError as error:
            msg = f"is no preference: {error}"
            raise DataError(msg) from error
        if self._keeps_reasoning:
            return pair
        shorter = replace(
            pair, chosen=without_reasoning(pair.chosen), rejected=without_reasoning(pair.rejected)
        )  # fmt: skip
        if shorter.chosen == shorter.rejected:
            msg = "has replies that differ in their reasoning only, which data.chat.reasoning=drop leaves out"
            raise DataError(msg)
        return shorter
