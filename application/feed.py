"""Batches for the loop, from documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from application.documents import stream_documents, tokenize
from application.prefetch import Prefetch
from domain.cursor import Cursor
from domain.order import row_order
from domain.packing import ConcatPacker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from domain.batch import Batch
    from domain.holdout import Holdout
    from ports.data_source import DataSource
    from ports.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FeedPlan:
    """What a batch is: ``rows`` sequences of ``sequence_length`` tokens, shuffled by ``seed``.

    Units are shuffled in each epoch, rows within windows of about ``shuffle_tokens`` tokens, so that a batch is not
    all of one document. ``epochs`` None repeats for ever; ``prefetch`` is how many batches are made ahead.
    """

    sequence_length: int
    rows: int
    seed: int
    epochs: int | None = None
    prefetch: int = 4
    shuffle_tokens: int = 0

    @property
    def window_rows(self) -> int:
        """Return how many rows are shuffled together: whole batches, at least one."""
        return max(1, self.shuffle_tokens // (self.sequence_length * self.rows)) * self.rows


@final
class Feed:
    """Streams training batches: read, leave out what is held out, tokenize, pack.

    The batches that follow a cursor are a pure function of the data, the plan and the cursor; prefetching changes
    nothing, since each batch carries the cursor behind it.
    """

    def __init__(self, source: DataSource, tokenizer: Tokenizer, holdout: Holdout, plan: FeedPlan) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._holdout = holdout
        self._plan = plan
        self._batches: Iterator[Batch] | Prefetch[Batch] | None = None
        self._pushed_back: list[Batch] = []

    def seek(self, cursor: Cursor) -> None:
        """Make ``cursor`` the place of the next batch."""
        self.close()
        batches = self._stream(cursor)
        self._batches = Prefetch(batches, depth=self._plan.prefetch) if self._plan.prefetch else batches

    def next(self) -> Batch | None:
        """Return the next batch, or None once finite data has ended; raises ``DataError`` where data is bad."""
        if self._pushed_back:
            return self._pushed_back.pop()
        if self._batches is None:
            self.seek(Cursor())
            assert self._batches is not None
        return next(self._batches, None)

    def push_back(self, batch: Batch) -> None:
        """Make ``batch`` the next one again."""
        self._pushed_back.append(batch)

    def close(self) -> None:
        """Stop reading; twice is harmless."""
        if isinstance(self._batches, Prefetch):
            self._batches.close()
        self._batches = None
        self._pushed_back.clear()

    def _stream(self, cursor: Cursor) -> Iterator[Batch]:
        start, taken = replace(cursor, taken=0), cursor.taken
        for window in self._windows(start):
            order = row_order(window.num_rows, seed=self._plan.seed, window=start)
            for begin in range(taken, window.num_rows, self._plan.rows):
                end = begin + self._plan.rows
                behind = replace(start, taken=end) if end < window.num_rows else window.cursor
                yield window.select(order[begin:end], behind)
            start, taken = window.cursor, 0

    def _windows(self, start: Cursor) -> Iterator[Batch]:
        packer = ConcatPacker(self._plan.sequence_length)
        documents = stream_documents(
            self._source,
            start,
            seed=self._plan.seed,
            epochs=self._plan.epochs,
            wanted=lambda text: not self._holdout.holds(text),
        )
        for tokens, document in tokenize(documents, self._tokenizer):
            packer.add(tokens, document.start, document.end)
            while (window := packer.take(self._plan.window_rows)) is not None:
                yield window
        if (rest := packer.take_rest()) is not None:
            yield rest
