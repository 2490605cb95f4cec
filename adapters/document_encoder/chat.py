"""Documents of conversations, of which the replies are trained on."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import conversation_from
from holdfast.domain.training.reply_spans import without_reasoning
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.training.conversation_record import Conversation
    from holdfast.domain.training.reply_spans import TrainOn
    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer
    from holdfast.ports.transform import Record

_FORMAT = 1


@final
class ChatDocumentEncoder(DocumentEncoder):
    """Encodes the conversation in the text of a record by ``template``, which belongs to ``tokenizer``.

    The replies that ``train_on`` names are trained on, with their reasoning if ``keeps_reasoning``. A record becomes
    several documents if the template renders earlier replies otherwise than the last one.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        train_on: TrainOn = "all_assistant",
        keeps_reasoning: bool = True,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._train_on: TrainOn = train_on
        self._keeps_reasoning = keeps_reasoning
        self._dtype = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32

    @override
    def encode(self, records: Sequence[Record]) -> Encoded:
        conversations = [_conversation_in(record.text) for record in records]
        if not self._keeps_reasoning:
            conversations = [without_reasoning(each) for each in conversations]
        encoded = self._template.encode_training(conversations, self._train_on)
        documents = list(chain.from_iterable(encoded))
        ids = np.concatenate([np.zeros(0, self._dtype), *(each.ids.astype(self._dtype) for each in documents)])
        mask = np.concatenate([np.zeros(0, np.bool_), *(each.loss_mask for each in documents)])
        offsets = np.cumsum([0, *(len(each.ids) for each in documents)], dtype=np.int64)
        return Encoded(ids, offsets, mask, np.array([len(each) for each in encoded], np.int64))

    @override
    def fingerprint(self) -> str:
        how = [_FORMAT, self._tokenizer.fingerprint(), self._template.fingerprint()]
        content = [*how, self._train_on, self._keeps_reasoning]
        return blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def _conversation_in(text: str) -> Conversation:
    try:
        return conversation_from(text)
    except DataError as error:
        msg = f"is no conversation: {error}"
        raise DataError(msg) from error
