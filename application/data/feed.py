"""Hands batches to the loop, prefetched in a thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, final

from holdfast.application.data.prefetch import Prefetch, WaitAbandoned
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.training.step_outcome import DataSupply

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.domain.data.batch import Batch
    from holdfast.ports.data_source import DataSource


class BatchStream(Protocol):
    """Batches as a pure function of their start: each carries the cursor of the next one.

    ``threads`` read for it; more than ``max_threads`` bring no gain. They may be changed at any time without changing a
    batch, but 0 stays 0.
    """

    threads: int

    @property
    def max_threads(self) -> int:
        """Return the largest useful number of threads."""
        ...

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``; raises ``DataError`` where data are bad."""
        ...

    def interrupt(self) -> None:
        """End a wait within ``batches``, which are not needed any more, from another thread."""
        ...


@final
class Feed:
    """Takes batches from ``stream``, ``prefetch`` of them ahead in a thread, and can take a batch back.

    Prefetching changes no batch, as each carries the cursor of the next one. ``source`` and ``rejections`` serve only
    the figures of ``supply``.
    """

    def __init__(
        self,
        stream: BatchStream,
        *,
        prefetch: int = 4,
        source: DataSource | None = None,
        rejections: RejectedRecords | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream = stream
        self._prefetch = prefetch
        self._source = source
        self._rejections = rejections
        self._clock = clock
        self._wait_seconds = 0.0
        self.gave_up = False
        self._batches: Generator[Batch] | Prefetch[Batch] | None = None
        self._pushed_back: list[Batch] = []

    @property
    def prefetch(self) -> int:
        """Return the number of batches prepared ahead; it may change at any time, but not to or from 0."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int) -> None:
        self._prefetch = prefetch
        if isinstance(self._batches, Prefetch):
            self._batches.resize(prefetch)

    @property
    def threads(self) -> int:
        """Return the number of threads that read for the batches; it may change at any time, but not to or from 0."""
        return self._stream.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._stream.threads = threads

    @property
    def max_threads(self) -> int:
        """Return the largest useful number of threads."""
        return self._stream.max_threads

    @property
    def supply(self) -> DataSupply:
        """Return the wait for the latest batch, the batches that are ready, and the data read so far."""
        source, rejections = self._source, self._rejections
        return DataSupply(
            self._wait_seconds,
            self._batches.fill if isinstance(self._batches, Prefetch) else 0,
            source.bytes_read if source is not None else 0,
            source.read_retries if source is not None else 0,
            rejections.count if rejections is not None else 0,
        )

    def seek(self, cursor: Cursor) -> None:
        """Continue at ``cursor``."""
        self.close()
        batches = self._stream.batches(cursor)
        self._batches = Prefetch(batches, depth=self._prefetch) if self._prefetch else batches

    def next(self, should_stop: Callable[[], bool] = lambda: False) -> Batch | None:
        """Return the next batch, or None at the end of finite data; raises ``DataError`` where data are bad.

        Returns None too, and sets ``gave_up``, if ``should_stop`` returns true while a prefetched batch is waited for.
        """
        asked = self._clock()
        self.gave_up = False
        try:
            return self._take(should_stop)
        except WaitAbandoned:
            self.gave_up = True
            return None
        finally:
            self._wait_seconds = self._clock() - asked

    def follow(self, cursor: Cursor, *, skip: int | None) -> Cursor:
        """Continue at ``cursor``, or, with a number, skip that many more batches from here; return the new cursor.

        Fewer batches are skipped at the end of the data.
        """
        if skip is None:
            self.seek(cursor)
        for _ in range(skip or 0):
            if (batch := self.next()) is None:
                break
            cursor = batch.cursor
        return cursor

    def push_back(self, batch: Batch) -> None:
        """Make ``batch`` the next batch again."""
        self._pushed_back.append(batch)

    def close(self, *, is_urgent: bool = False) -> None:
        """Stop reading; a second call has no effect. ``is_urgent`` if a read that hangs is hardly waited for."""
        if self._batches is not None:
            self._stream.interrupt()
        if isinstance(self._batches, Prefetch):
            self._batches.close(is_urgent=is_urgent)
        elif self._batches is not None:
            self._batches.close()
        self._batches = None
        self._pushed_back.clear()

    def _take(self, should_stop: Callable[[], bool]) -> Batch | None:
        if self._pushed_back:
            return self._pushed_back.pop()
        if self._batches is None:
            self.seek(Cursor())
            assert self._batches is not None
        if isinstance(self._batches, Prefetch):
            try:
                return self._batches.next_unless(should_stop)
            except StopIteration:
                return None
        return next(self._batches, None)
