"""A base class that forwards to a tokenizer."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from holdfast.domain.errors import ConfigurationError
from holdfast.ports.tokenizer import (
    ChatTemplate,
    Encoded,
    HasChatTemplate,
    ShowsSpecialTokens,
    SurroundsDocuments,
    TemplateChoice,
    Tokenizer,
    ids_around,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class ForwardingTokenizer(Tokenizer, SurroundsDocuments, HasChatTemplate, ShowsSpecialTokens):
    """Encodes with ``inner``, and has its abilities.

    The chat template is that of ``inner``, which does not call the wrapper to encode a conversation.
    """

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner

    @property
    @override
    def vocabulary_size(self) -> int:
        return self.inner.vocabulary_size

    @property
    @override
    def end_of_text(self) -> int:
        return self.inner.end_of_text

    @property
    @override
    def around(self) -> tuple[Sequence[int], Sequence[int]]:
        return ids_around(self.inner)

    @property
    @override
    def token_bytes(self) -> NDArray[np.int32]:
        return self.inner.token_bytes

    @override
    def encode(self, documents: Sequence[str]) -> Encoded:
        return self.inner.encode(documents)

    @override
    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(ids)

    @override
    def decode_all(self, ids: Sequence[int]) -> str:
        return self.inner.decode_all(ids) if isinstance(self.inner, ShowsSpecialTokens) else self.inner.decode(ids)

    @property
    @override
    def chat_template(self) -> ChatTemplate | None:
        return self.inner.chat_template if isinstance(self.inner, HasChatTemplate) else None

    @override
    def with_template(self, choice: TemplateChoice) -> Self:
        if not isinstance(self.inner, HasChatTemplate):
            msg = "the tokenizer takes no chat template, which conversations need: use one in Hugging Face's format"
            raise ConfigurationError(msg)
        other, templated = copy(self), self.inner.with_template(choice)
        other.inner = templated
        return other

    @override
    def write(self, folder: Path) -> None:
        self.inner.write(folder)

    @override
    def fingerprint(self) -> str:
        return self.inner.fingerprint()
