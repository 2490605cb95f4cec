"""A base class that forwards to a tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from holdfast.ports.tokenizer import Encoded, SurroundsDocuments, Tokenizer, ids_around

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class ForwardingTokenizer(Tokenizer, SurroundsDocuments):
    """Encodes with ``inner``."""

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
    def write(self, folder: Path) -> None:
        self.inner.write(folder)

    @override
    def fingerprint(self) -> str:
        return self.inner.fingerprint()
