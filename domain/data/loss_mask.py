"""Loss masks: a bit for each token, which says whether the model is trained on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class LossMask(Protocol):
    """A loss mask with random access: an array, or bits that are unpacked slice by slice."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[np.bool_]: ...


@final
class PackedLossMask:
    """The mask of ``num_tokens`` tokens as ``bits``, uint8, that ``pack_mask`` packed; a slice is a new bool array."""

    def __init__(self, bits: NDArray[np.uint8], num_tokens: int) -> None:
        self._bits = bits
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return self._num_tokens

    def __getitem__(self, part: slice, /) -> NDArray[np.bool_]:
        start, stop, _ = part.indices(self._num_tokens)
        first = start // 8
        unpacked = np.unpackbits(self._bits[first : -(-stop // 8)], bitorder="little")
        return unpacked[start - 8 * first : stop - 8 * first].view(np.bool_)


def pack_mask(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return ``mask`` (tokens,) as bits, uint8: the first token is the lowest bit; the last byte ends with zeros."""
    return np.packbits(mask, bitorder="little")


def packed_size(num_tokens: int) -> int:
    """Return the number of bytes that the mask of ``num_tokens`` tokens takes."""
    return -(-num_tokens // 8)


def join_masks(masks: Sequence[NDArray[np.bool_] | None], lengths: Sequence[int]) -> NDArray[np.bool_] | None:
    """Return the concatenation of ``masks``, of ``lengths`` along the first axis; None only if all of them are None.

    A mask that is None trains on all tokens.
    """
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    rest = given[0].shape[1:]
    return np.concatenate([
        np.ones((length, *rest), np.bool_) if mask is None else mask
        for mask, length in zip(masks, lengths, strict=True)
    ])  # fmt: skip


def num_supervised(mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> int:
    """Return the number of tokens in ``mask`` that are targets: never the first token of a document.

    Document ``i`` is ``mask[offsets[i] : offsets[i + 1]]``, with at least one token.
    """
    return int(np.count_nonzero(mask)) - int(np.count_nonzero(mask[offsets[:-1]]))
