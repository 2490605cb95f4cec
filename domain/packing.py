"""Cutting a stream of documents into rows of one length."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from domain.batch import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from domain.cursor import Cursor


@final
class ConcatPacker:
    """Concatenates documents and cuts the stream at ``length`` tokens; no token is dropped.

    Tokens in = tokens out + ``held``. A document that crosses a cut goes on in the next row with positions from 0.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._held: deque[tuple[NDArray[np.integer], Cursor]] = deque()
        self._end: Cursor | None = None
        self.held = 0

    def add(self, tokens: NDArray[np.integer], start: Cursor, end: Cursor) -> None:
        """Append a document that lies from ``start`` to ``end``, less the ``start.skip`` tokens already carried."""
        rest = tokens[start.skip :]
        self._end = end
        if len(rest):
            self._held.append((rest, start))
            self.held += len(rest)

    def take(self, rows: int) -> Batch | None:
        """Return the next ``rows`` full rows, or None if fewer are held."""
        return self._cut(rows * self._length) if self.held >= rows * self._length else None

    def take_rest(self) -> Batch | None:
        """Return all that is held, the last row padded, or None if nothing is."""
        return self._cut(self.held) if self.held else None

    def _cut(self, num_tokens: int) -> Batch:
        pieces: list[NDArray[np.integer]] = []
        missing = num_tokens
        while missing:
            tokens, start = self._held.popleft()
            if len(tokens) > missing:
                self._held.appendleft((tokens[missing:], replace(start, skip=start.skip + missing)))
                tokens = tokens[:missing]
            pieces.append(tokens)
            missing -= len(tokens)
        self.held -= num_tokens
        cursor = self._held[0][1] if self._held else self._end
        assert cursor is not None  # something was added, or there would be nothing to cut
        return rows_of(pieces, self._length, cursor)


def rows_of(pieces: list[NDArray[np.integer]], length: int, cursor: Cursor) -> Batch:
    """Return ``pieces`` of documents one after the other as rows of ``length`` tokens, the last one padded."""
    lengths = [len(piece) for piece in pieces]
    padding = -sum(lengths) % length
    flat = np.concatenate([*pieces, np.zeros(padding, np.int64)]).astype(np.int64, copy=False)
    owner = np.repeat(np.arange(len(pieces) + 1), [*lengths, padding]).reshape(-1, length)
    is_padding = owner == len(pieces)
    starts = np.ones(owner.shape, np.bool_)
    starts[:, 1:] = owner[:, 1:] != owner[:, :-1]
    column = np.arange(length)
    since = np.maximum.accumulate(np.where(starts, column, 0), axis=1)
    return Batch(
        input_ids=flat.reshape(-1, length),
        position_ids=np.where(is_padding, 0, column - since),
        document_ids=np.where(is_padding, -1, np.cumsum(starts, axis=1) - 1).astype(np.int32),
        loss_mask=~(starts | is_padding),
        cursor=cursor,
    )
