"""The port for the conversion of records to documents of token ids, and to the tokens that are trained on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.ports.tokenizer import Encoded
    from holdfast.ports.transform import Record


class DocumentEncoder(ABC):
    """Turns records into documents of token ids; the loss mask says which of the tokens are trained on.

    - Pure: equal records give equal ids and masks, and a batch of records gives the same as its records one by one.
    - A document is complete: its ids include those that end it, so it has at least one.
    - An encoder either returns a loss mask for all records or for none.
    - ``fingerprint`` identifies everything that decides ids and masks, the tokenizer included: cached tokens depend on
      it, and a run can only be resumed with the same encoder.
    - Usable from several threads at once.
    """

    @abstractmethod
    def encode(self, records: Sequence[Record]) -> Encoded:
        """Return the documents of ``records``, in their order: one for each, or as many as ``Encoded.counts`` says.

        Raises ``DataError`` if a record cannot be encoded; the caller then encodes each record alone, and rejects those
        that raise. The message continues a sentence that begins with "the document at position 7", and names the
        remedy.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the encoding, the same in every process."""


class CountsText(ABC):
    """The optional ability of a ``DocumentEncoder`` to say how many bytes of the record's text each token stands for.

    - The counts of a record add up to the bytes in UTF-8 of the text that its tokens stand for, even if the tokenizer
      discards or changes some of it; tokens that stand for no text, such as end-of-text, have 0.
    """

    @abstractmethod
    def text_bytes(self, records: Sequence[Record], encoded: Encoded) -> NDArray[np.int64]:
        """Return the count of each token of ``encoded``, the result of ``encode`` for ``records``, int64 (tokens,)."""
