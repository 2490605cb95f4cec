"""The port for the conversion of text to token ids and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of several documents, flat: document ``i`` is ``ids[offsets[i]:offsets[i + 1]]``.

    ``ids`` is uint16 or uint32, (num_tokens,); ``offsets`` int64, (num_documents + 1,).
    """

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]

    def __iter__(self) -> Iterator[NDArray[np.unsignedinteger]]:
        """Yield the ids of each document."""
        for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.ids[start:end]


class Tokenizer(ABC):
    """Encodes documents, always as ordinary text.

    - Pure: equal documents give equal ids, and encoding a batch equals encoding its documents one by one.
    - Ids lie in ``[0, vocabulary_size)``. No special token is added, and the text of a special token in a document does
      not become the special id.
    - ``decode(encode(text))`` returns ``text``, if the tokenizer is lossless.
    - ``token_bytes`` summed over a document's ids is the length of its UTF-8 bytes, if the tokenizer is lossless.
    - ``fingerprint`` is the same wherever a tokenizer is loaded, and differs if the encoding differs.
    - A document that UTF-8 cannot hold (a lone surrogate) raises ``DataError``.
    - Usable from several threads at once.
    - ``write`` puts files into a folder that Hugging Face's ``AutoTokenizer`` can load directly.
    """

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Return the number of ids, special ones included."""

    @property
    @abstractmethod
    def end_of_text(self) -> int:
        """Return the id that the packer puts after each document."""

    @property
    @abstractmethod
    def token_bytes(self) -> NDArray[np.int32]:
        """Return the number of bytes of text of each id, int32, (vocabulary_size,), 0 for special ids."""

    @abstractmethod
    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special ids left out."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the tokenizer's files into the existing ``folder``, with the same bytes each time."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the encoding."""
