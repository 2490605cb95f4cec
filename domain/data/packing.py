"""Packs documents into rows of one length."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np

from holdfast.domain.data.loss_mask import join_masks
from holdfast.domain.data.preference_pairs import rejected_starts, split_pairs
from holdfast.domain.data.row_index import RowIndex, RowPlace
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pair: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
    from collections.abc import Callable, Sequence


Overflow: TypeAlias = Literal["split", "truncate", "drop"]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Packed rows, and the numbers of tokens that were ``dropped`` or ``repeated`` by the packing.

    The number of the documents' tokens is always ``index.num_tokens - repeated + dropped``.
    """

    index: RowIndex
    dropped: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class ConcatPacking:
    """Concatenates documents and cuts them every ``length`` tokens: only the last row is shorter.

    A document that crosses a cut continues in the next row. Documents longer than a row are treated by ``overflow``:
    ``split`` cuts them like all documents, ``truncate`` takes their first ``length`` tokens, ``drop`` leaves them out.
    """

    version: ClassVar[str] = "concat.1"

    length: int
    overflow: Overflow = "split"

    def __post_init__(self) -> None:
        _check(self.length, self.overflow)

    def __call__(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Packed:
        """Return the rows of documents, ``lengths`` tokens from ``starts`` on, both int64; rows are in their order."""
        starts, sizes = (starts, lengths) if self.overflow == "split" else _fit(starts, lengths, self)
        ends = np.cumsum(sizes)
        begins = ends - sizes
        first_rows = begins // self.length
        documents, numbers = _count_up(np.where(sizes > 0, (ends - 1) // self.length - first_rows + 1, 0))
        row_begins = (first_rows[documents] + numbers) * self.length
        piece_begins = np.maximum(begins[documents], row_begins)
        piece_lengths = np.minimum(ends[documents], row_begins + self.length) - piece_begins
        piece_starts = starts[documents] + piece_begins - begins[documents]
        rows = np.append(np.flatnonzero(piece_begins == row_begins), len(documents))
        return Packed(RowIndex(piece_starts, piece_lengths, rows), int(lengths.sum() - sizes.sum()))

    def num_settled(self, lengths: NDArray[np.int64]) -> tuple[int, int]:
        """Return where the tokens of whole rows end: the number of whole documents, and of tokens of the next one.

        ``lengths`` int64 are those of documents that fit by ``overflow``; documents after them change no row before.
        """
        ends = np.cumsum(lengths)
        whole = int(lengths.sum()) // self.length * self.length
        documents = int(np.searchsorted(ends, whole, side="right"))
        return documents, whole - int(ends[documents - 1] if documents else 0)


@dataclass(frozen=True, slots=True)
class BestFitPacking:
    """Puts each piece of a document into the fullest row that has room for the whole piece: documents are rarely cut.

    Best-fit decreasing (Ding et al.: Fewer truncations improve language modeling, 2024) in windows of ``window``
    documents, which bounds memory; padding stays well under 1 % of the tokens. Documents longer than a row are treated
    by ``overflow``: ``split`` into pieces, ``truncate`` to their first tokens, or ``drop``. The rows of a window are in
    the order of their first documents. Raises ``ConfigurationError`` for an impossible length or window.
    """

    version: ClassVar[str] = "best_fit.1"

    length: int
    overflow: Overflow = "split"
    window: int = 10_000

    def __post_init__(self) -> None:
        _check(self.length, self.overflow)
        if self.window < 1:
            msg = f"packing cannot look at {self.window} documents at a time: take about 10000"
            raise ConfigurationError(msg)

    def __call__(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Packed:
        """Return the rows of documents, ``lengths`` tokens from ``starts`` on, both int64."""
        parts = [
            self._pack(starts[begin : begin + self.window], lengths[begin : begin + self.window])
            for begin in range(0, max(1, len(lengths)), self.window)
        ]
        starts, sizes, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        rows = np.append(0, np.cumsum(counts))
        return Packed(RowIndex(starts, sizes, rows), int(lengths.sum() - sizes.sum()))

    def num_settled(self, lengths: NDArray[np.int64]) -> tuple[int, int]:
        """Return the number of whole documents that fill rows well, and of tokens of the next one.

        These are the longest beginning found that takes no more rows than its tokens need, or else one row less than
        it would take otherwise, so that later documents can still join those after it. ``lengths`` int64 are those of
        documents that fit by ``overflow``.
        """
        documents, numbers = _count_up(-(-lengths // self.length))
        pieces = np.minimum(lengths[documents] - numbers * self.length, self.length)
        ends = np.cumsum(pieces)
        most = int(lengths.sum()) // self.length
        settled = int(np.searchsorted(ends, most * self.length, side="right"))
        taken, less = self._num_rows(pieces[:settled]), 1
        if taken > most:
            most = taken - 1
            while self._num_rows(pieces[:settled]) > most:
                settled, less = max(1, settled - less), less * 2
        if settled == len(pieces):
            return len(lengths), 0
        return int(documents[settled]), int(numbers[settled]) * self.length

    def _num_rows(self, pieces: NDArray[np.int64]) -> int:
        return self(np.zeros_like(pieces), pieces).index.num_rows

    def _pack(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        starts, lengths = _fit(starts, lengths, self)
        by_length = np.argsort(-lengths, kind="stable")
        rows = np.empty_like(lengths)
        rows[by_length] = _best_fit(lengths[by_length], self.length)
        _, first, row_of, counts = np.unique(rows, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first[row_of], kind="stable")
        return starts[order], lengths[order], counts[np.argsort(first)]


@dataclass(frozen=True, slots=True)
class SlidingPacking:
    """Cuts each document into windows of ``length`` tokens; each window starts ``stride`` tokens after the previous.

    Each window is a row, in order; the last window of a document ends with the document. Tokens repeat where windows
    overlap. Raises ``ConfigurationError`` for an impossible length or stride.
    """

    version: ClassVar[str] = "sliding.1"

    length: int
    stride: int

    def __post_init__(self) -> None:
        _check(self.length, "split")
        if not 1 <= self.stride <= self.length:
            msg = f"a stride of {self.stride} leaves gaps between windows of {self.length} tokens, or does not advance"
            raise ConfigurationError(msg)

    def __call__(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Packed:
        """Return the rows of documents, ``lengths`` tokens from ``starts`` on, both int64."""
        further = -(-np.maximum(lengths - self.length, 0) // self.stride)
        documents, numbers = _count_up(np.where(lengths > 0, further + 1, 0))
        begins = numbers * self.stride
        sizes = np.minimum(lengths[documents] - begins, self.length)
        index = RowIndex(starts[documents] + begins, sizes, np.arange(len(documents) + 1))
        return Packed(index, repeated=int(sizes.sum() - lengths.sum()))

    def num_settled(self, lengths: NDArray[np.int64]) -> tuple[int, int]:
        """Return the number of documents and 0 tokens: no two documents share a row."""
        return len(lengths), 0


Packing: TypeAlias = ConcatPacking | BestFitPacking | SlidingPacking


def packing_key(packing: Packing) -> str:
    """Return the key under which the rows of a packing are cached: equal keys mean equal rows."""
    return ",".join([packing.version, *(f"{each.name}={getattr(packing, each.name)}" for each in fields(packing))])


def _check(length: int, overflow: str) -> None:
    if length < 1:
        msg = f"a row cannot hold {length} tokens: it needs at least one"
        raise ConfigurationError(msg)
    if overflow not in ("split", "truncate", "drop"):
        msg = f"overflow is {overflow!r}: it must be split, truncate or drop"
        raise ConfigurationError(msg)


def _fit(starts: NDArray[np.int64], lengths: NDArray[np.int64], packing: ConcatPacking | BestFitPacking) -> Pair:
    length = packing.length
    if packing.overflow == "truncate":
        lengths = np.minimum(lengths, length)
    kept = (lengths > 0) & (lengths <= length) if packing.overflow == "drop" else lengths > 0
    starts, lengths = starts[kept], lengths[kept]
    documents, numbers = _count_up(-(-lengths // length))
    return starts[documents] + numbers * length, np.minimum(lengths[documents] - numbers * length, length)


def _count_up(counts: NDArray[np.int64]) -> Pair:
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)


def _best_fit(lengths: NDArray[np.int64], length: int) -> list[int]:
    # a bit for each number of tokens that some row holds: the highest of those allowed is the fullest row with room
    fullest = 0
    rows_with: defaultdict[int, list[int]] = defaultdict(list)  # by their number of tokens
    num_rows = 0
    rows: list[int] = []
    sizes, counts = np.unique(-lengths, return_counts=True)
    for size, count in zip((-sizes).tolist(), counts.tolist(), strict=True):
        has_room = (2 << (length - size)) - 1
        missing = count
        while missing:
            used = (fullest & has_room).bit_length() - 1
            if used > 0:
                row = rows_with[used].pop()
                if not rows_with[used]:
                    fullest ^= 1 << used
            else:
                row, used, num_rows = num_rows, 0, num_rows + 1
            fits = min(missing, (length - used) // size)
            rows += [row] * fits
            missing -= fits
            used += fits * size
            if not rows_with[used]:
                fullest |= 1 << used
            rows_with[used].append(row)
    return rows


def place_rows(
    documents: Sequence[NDArray[np.unsignedinteger]],
    packing: Callable[[NDArray[np.int64], NDArray[np.int64]], Packed],
    masks: Sequence[NDArray[np.bool_] | None] | None = None,
    *,
    holds_pairs: bool = False,
    reference: NDArray[np.float64] | None = None,
) -> list[RowPlace]:
    """Return the rows that ``packing`` makes of ``documents``, uint16 or uint32, (length,), for ``read_rows``.

    ``masks`` are the loss masks of the documents, bool (length,); None trains on all tokens of a document. With
    ``holds_pairs`` each document is a pair of conversations, which ``reference`` has the log-probabilities of, float64
    (documents, 2).
    """
    lengths = np.array([len(document) for document in documents])
    index = packing(np.cumsum(lengths) - lengths, lengths).index
    ids = np.concatenate(documents)
    mask = None if masks is None else join_masks(masks, lengths.tolist())
    if holds_pairs:
        offsets = np.append(0, np.cumsum(lengths))
        index = split_pairs(index, offsets, rejected_starts(mask, offsets), reference)
    return [(ids, mask, index, row) for row in range(index.num_rows)]
