"""Packed rows of tokens, the unit of work of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from holdfast.domain.data.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of packed documents; the model predicts each token from the earlier tokens of the same document.

    ``input_ids`` is int64 (rows, length). ``starts`` int64 (pieces,) are the positions in the flattened rows at which
    pieces of documents begin, in increasing order; a row that is not empty begins with a piece. ``row_lengths`` int64
    (rows,) counts the tokens of each row; padding follows them. ``cursor`` is the position of the *next* batch. It is
    stored with the batch, so that a resume is exact in spite of prefetching. ``supervised``, bool (rows, length), says
    which tokens are trained on, with any value on padding; None means all of them. ``reference``, float64 (pieces,),
    makes it a batch of preferences: a row holds pairs of pieces, of which the first is preferred to the second, and
    these are the log-probabilities of their targets under the reference model. The arrays that a model takes are
    computed from all these on first use.
    """

    input_ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    row_lengths: NDArray[np.int64]
    cursor: Cursor = field(default_factory=Cursor)
    supervised: NDArray[np.bool_] | None = None
    reference: NDArray[np.float64] | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return int(self.input_ids.shape[0])

    @cached_property
    def num_tokens(self) -> int:
        """Return the number of tokens without padding."""
        return int(self.row_lengths.sum())

    @cached_property
    def num_targets(self) -> int:
        """Return the number of tokens that the model predicts; it may be 0."""
        if self.supervised is None:
            return self.num_tokens - len(self.starts)
        return int(np.count_nonzero(self.loss_mask))

    @property
    def num_terms(self) -> int:
        """Return the number of terms in the mean loss: the targets, or the pairs of a batch of preferences."""
        return self.num_targets if self.reference is None else len(self.reference) // 2

    @cached_property
    def position_ids(self) -> NDArray[np.int64]:
        """Return the position of each token in its piece, int64 (rows, length); 0 on padding."""
        begins = np.append(0, self.starts)
        flat = np.arange(self.input_ids.size)
        flat -= np.repeat(begins, np.diff(begins, append=flat.size))
        return self._masked(flat.reshape(self.input_ids.shape), 0)

    @cached_property
    def document_ids(self) -> NDArray[np.int32]:
        """Return the number of each token's piece in its row, int32 (rows, length), from 0; -1 on padding."""
        begins = np.zeros(self.input_ids.shape, np.int32)
        begins.reshape(-1)[self.starts] = 1
        return self._masked(np.cumsum(begins, axis=1, dtype=np.int32) - 1, -1)

    @cached_property
    def loss_mask(self) -> NDArray[np.bool_]:
        """Return whether each token is a target, bool (rows, length): never the first of a piece, never padding."""
        mask = ~self._padding
        if self.supervised is not None:
            mask &= self.supervised
        mask.reshape(-1)[self.starts] = False
        return mask

    @cached_property
    def document_ends(self) -> NDArray[np.int32]:
        """Return the ends of the pieces in the flattened rows after a first 0, int32; each padding token is a piece."""
        begins = np.flatnonzero(self.position_ids.reshape(-1) == 0)
        return np.append(begins, self.input_ids.size).astype(np.int32)

    @cached_property
    def target_places(self) -> NDArray[np.int64]:
        """Return the place before each target in the flattened rows, from which it is predicted, int64 (targets,)."""
        return np.flatnonzero(self.loss_mask.reshape(-1)) - 1

    @cached_property
    def target_pieces(self) -> NDArray[np.int64]:
        """Return the number of the piece of each target, int64 (targets,)."""
        return np.searchsorted(self.starts, self.target_places, side="right") - 1

    @cached_property
    def reference_margins(self) -> NDArray[np.float32]:
        """Return by how much the reference model prefers each pair's first piece, in nats, float32 (pairs,)."""
        assert self.reference is not None, "these are no preferences"
        return (self.reference[0::2] - self.reference[1::2]).astype(np.float32)

    def split(self, rows: int) -> Iterator[Batch]:
        """Yield the batch in order as micro-batches of at most ``rows`` rows."""
        length = self.input_ids.shape[1]
        for begin in range(0, self.num_rows, rows):
            part = slice(begin, begin + rows)
            first, last = np.searchsorted(self.starts, [begin * length, (begin + rows) * length])
            starts = self.starts[first:last] - begin * length
            supervised = None if self.supervised is None else self.supervised[part]
            reference = None if self.reference is None else self.reference[first:last]
            yield Batch(self.input_ids[part], starts, self.row_lengths[part], self.cursor, supervised, reference)

    def sum_by_piece(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of ``values`` (rows, length), 0 on padding, for each piece: (pieces,), of the same dtype."""
        sums: NDArray[Any] = np.add.reduceat(values.reshape(-1), self.starts) if len(self.starts) else values[:0, 0]
        return sums

    def pieces(self) -> Iterator[Batch]:
        """Yield each piece in order as a batch of one row without padding."""
        sizes = self.sum_by_piece(~self._padding * 1)
        for start, size in zip(self.starts.tolist(), sizes.tolist(), strict=True):
            part = (slice(None), slice(start, start + size))
            supervised = None if self.supervised is None else self.supervised.reshape(1, -1)[part]
            yield Batch(
                self.input_ids.reshape(1, -1)[part], np.zeros(1, np.int64), np.array([size]), self.cursor, supervised
            )

    @cached_property
    def _padding(self) -> NDArray[np.bool_]:
        return np.arange(self.input_ids.shape[1]) >= self.row_lengths[:, np.newaxis]

    def _masked(self, values: NDArray[np.signedinteger], padding: int) -> NDArray[np.signedinteger]:
        if self.num_tokens < self.input_ids.size:
            values[self._padding] = padding
        return values


NO_POSITION = -1  # of a document in its unit, if the tokens were made without a record of it


class UnitName(NamedTuple):
    """The name of a source and that of one of its units, such as a file."""

    source: str
    unit: str


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Pieces of documents in samples, ordered by sample and by place in it; one element of each array for each piece.

    ``sample`` int64 is the number of the sample since the run began, so the row of a step is ``sample`` minus the
    first sample of the step. ``epoch`` int64 is the pass over the source, from 0. ``unit`` int64 is an index of
    ``units``. ``document`` uint64 is the id of the document, and ``position`` int64 is its position in the unit, or
    ``NO_POSITION``. The piece has ``num_tokens`` int64 tokens from the token ``first_token`` int64 of the document on.
    """

    sample: NDArray[np.int64]
    epoch: NDArray[np.int64]
    unit: NDArray[np.int64]
    document: NDArray[np.uint64]
    position: NDArray[np.int64]
    first_token: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    units: tuple[UnitName, ...]

    @classmethod
    def empty(cls, units: tuple[UnitName, ...] = ()) -> Self:
        """Return no spans."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, np.zeros(0, np.uint64), nothing, nothing, nothing, units)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the spans of all ``parts``, in order; parts may name different units."""
        if not parts:
            return cls.empty()
        numbers: dict[UnitName, int] = {}
        units = []
        for part in parts:
            table = np.array([numbers.setdefault(name, len(numbers)) for name in part.units], np.int64)
            units.append(table[part.unit])
        return cls(
            np.concatenate([part.sample for part in parts]),
            np.concatenate([part.epoch for part in parts]),
            np.concatenate(units),
            np.concatenate([part.document for part in parts]),
            np.concatenate([part.position for part in parts]),
            np.concatenate([part.first_token for part in parts]),
            np.concatenate([part.num_tokens for part in parts]),
            tuple(numbers),
        )

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.sample)

    @property
    def column(self) -> NDArray[np.int64]:
        """Return the position of the first token of each piece in its row, int64 (pieces,)."""
        before = np.cumsum(self.num_tokens) - self.num_tokens
        is_first = np.append(True, self.sample[1:] != self.sample[:-1])[: len(self)]
        return before - np.maximum.accumulate(np.where(is_first, before, 0))

    def at(self, places: NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Return the spans at ``places``: their numbers, int64, or whether each is chosen, bool (pieces,)."""
        return Spans(
            self.sample[places],
            self.epoch[places],
            self.unit[places],
            self.document[places],
            self.position[places],
            self.first_token[places],
            self.num_tokens[places],
            self.units,
        )
