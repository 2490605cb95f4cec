"""Token ids with random access."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class TokenIds(Protocol):
    """Flat uint16 or uint32 ids: an array, or a view that reads, compares or decrypts each slice on access."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the ids: uint16 or uint32."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Any]: ...


def utf8_sizes(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of bytes of each text in UTF-8, int64 (texts,)."""
    return np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], np.int64)


def spread_bytes(
    token_bytes: NDArray[np.integer], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the bytes of each token's share of its text, int64 (tokens,), whole numbers that add up to ``sizes``.

    ``token_bytes`` (tokens,) are those that the tokens hold, ``sizes`` those of the texts (texts,), and text ``i`` has
    the tokens ``offsets[i]`` to ``offsets[i + 1]``, at least one unless it is empty. If the tokens hold the text, the
    result is ``token_bytes``. A tokenizer may discard, add or replace text: then the bytes are in proportion to what
    the tokens hold, and those of a text of which they hold nothing count at its last token.
    """
    owners = np.repeat(np.arange(len(sizes)), np.diff(offsets))
    held = token_bytes.astype(np.int64)
    has_tokens = np.diff(offsets) > 0
    is_blank = (np.diff(np.append(0, np.cumsum(held))[offsets]) == 0) & has_tokens
    held[offsets[1:][is_blank] - 1] = 1
    sums = np.append(0, np.cumsum(held))
    totals = np.diff(sums[offsets])
    ends = (sums[1:] - sums[offsets[:-1]][owners]) * sizes[owners] // totals[owners]
    shares: NDArray[np.int64] = np.diff(ends, prepend=0)
    begins = offsets[:-1][has_tokens]
    shares[begins] = ends[begins]
    return shares
