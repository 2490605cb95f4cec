"""The pass of the reference model over all preferences, before training."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from holdfast.application.training.evaluator import PieceLosses
from holdfast.domain.data.exclusion import document_of
from holdfast.domain.data.packing import BestFitPacking
from holdfast.domain.data.preference_pairs import rejected_starts, split_pairs
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import DataError
from holdfast.domain.phase import Amount, show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.training.step_engine import DataRanks
    from holdfast.domain.data.row_index import RowIndex
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.token_source import Tokens, TokenShard, TokenSource


class ReferenceWork(NamedTuple):
    """The figures of a pass: pairs that were computed, longer pairs that were left out, and seconds."""

    num_pairs: int
    num_too_long: int
    seconds: float


_WORK = "computing the reference log-probabilities"


@final
class ReferencePass:
    """Computes the log-probabilities of replies by ``trainable``, which must not have been trained yet.

    Pairs that are longer than a row of ``length`` tokens are left out. The ranks of ``group`` share the rows of a
    block, ``rows`` of them at a time on each, and call all methods together. A block that is stored is not computed
    again, so a killed pass continues there. ``in_turns`` calls a function on one rank after the other. ``show`` gets
    the progress. ``look`` is called on all ranks before each batch; an error that it raises on all of them ends the
    pass.
    """

    def __init__(
        self,
        trainable: Trainable,
        group: ProcessGroup | DataRanks,
        column: ReferenceColumn,
        *,
        length: int,
        rows: int,
        in_turns: Callable[[Callable[[], object]], object] = lambda call: call(),
        show: ShowPhase = show_nothing,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        self._losses = PieceLosses(trainable, num_ranks=group.size)
        self._group = group
        self._column = column
        self._packing = BestFitPacking(length, "drop")
        self._rows = rows
        self._in_turns = in_turns
        self._show = show
        self._look = look

    def run(self, sources: Sequence[TokenSource]) -> ReferenceWork:
        """Store what is missing for ``sources``; return the figures of the work.

        Raises ``OutOfMemory`` if a row is too much, ``StateError`` if the disk is full, and ``DataError`` if the model
        returns NaN or an infinity.
        """
        began, missing = time.monotonic(), list(self._missing(sources))
        done, num_pairs = 0, 0
        total = sum(self._num_documents(shard, number) for _, shard, number in missing)
        for tokens, shard, number in missing:
            self._show(_WORK, Amount(done, total, "pairs"))
            values = self._values(tokens.open(shard), number)
            self._in_turns(partial(self._column.store, tokens, shard, number, values))
            done += len(values)
            num_pairs += int(np.isfinite(values[:, 0]).sum())
        return ReferenceWork(num_pairs, done - num_pairs, time.monotonic() - began)

    def _missing(self, sources: Sequence[TokenSource]) -> Iterator[tuple[TokenSource, TokenShard, int]]:
        """Yield the blocks that any rank lacks."""
        blocks = [
            (tokens, shard, number)
            for tokens in sources
            for shard in tokens.shards()
            for number in range(self._column.num_blocks(shard))
        ]
        lacks = [float(not self._column.has(*block)) for block in blocks]
        yield from (block for block, lack in zip(blocks, self._group.sum(lacks), strict=True) if lack)

    def _num_documents(self, shard: TokenShard, number: int) -> int:
        return len(range(*self._column.block(number).indices(shard.num_documents)))

    def _values(self, tokens: Tokens, number: int) -> NDArray[np.float64]:
        """Return the log-probabilities of the pairs of a block, float64 (documents, 2)."""
        part = self._column.block(number)
        offsets = tokens.offsets[part.start : part.stop + 1]
        index = self._packing(offsets[:-1], np.diff(offsets)).index
        documents = document_of(index.starts, offsets[:-1])
        index = split_pairs(index, offsets, rejected_starts(tokens.loss_mask, offsets))
        values = np.full((len(offsets) - 1, 2), np.nan)
        if index.num_rows:
            losses = -self._nats(tokens, index).reshape(-1, 2)
            if not np.isfinite(losses).all():  # stored, they would end every run that finds them
                msg = (
                    "the reference model, which is the model before its first step, returns log-probabilities that are "
                    "NaN or infinite: check the weights of model.path, or set optimizer.precision=fp32"
                )
                raise DataError(msg)
            values[documents] = losses
        return values

    def _nats(self, tokens: Tokens, index: RowIndex) -> NDArray[np.float64]:
        """Return the summed loss of each piece of ``index``, float64 (pieces,)."""
        nats = np.zeros(len(index.starts))
        parts = [
            range(begin, min(begin + self._rows, index.num_rows)) for begin in range(0, index.num_rows, self._rows)
        ]
        for begin in range(0, len(parts), self._group.size):
            self._look()
            place = begin + self._group.rank
            rows = parts[min(place, len(parts) - 1)]
            places = [(tokens.ids, tokens.loss_mask, index, row) for row in rows]
            _, losses = self._losses.by_piece(read_rows(places, self._packing.length))
            if place < len(parts):  # else the result is dropped: a sharded model runs on all ranks or none
                nats[index.rows[rows.start] : index.rows[rows.stop]] = losses
        return np.array(self._group.sum(nats.tolist()))
