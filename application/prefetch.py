"""Producing items ahead of the one who asks for them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_PATIENCE_SECONDS = 10.0


@final
@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


@final
class Prefetch(Generic[T]):
    """Iterates ``items`` in a thread, at most ``depth`` of them ahead; an error is raised where its item would be.

    One thread at a time may iterate. ``close`` ends the thread at its next item and waits for it, so that nothing runs
    on behind a finished run.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._items = items
        self._depth = depth
        # queues of C alone: every lock of Python's that the two threads share costs those that work the interpreter
        self._ready: SimpleQueue[T | _End] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._end: _End | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._produce, name="holdfast-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next item, waiting for it if need be."""
        if self._end is None:
            item = self._ready.get()
            if not isinstance(item, _End):
                self._room.put(None)
                return item
            self._end = item
        if self._end.error is not None:
            raise self._end.error
        raise StopIteration

    @property
    def fill(self) -> int:
        """Return how many items are ready."""
        return max(0, self._depth - self._room.qsize())

    def close(self) -> None:
        """Stop producing; twice is harmless. A thread that hangs in reading is left to itself after a while."""
        self._closed = True
        self._room.put(None)
        self._thread.join(_PATIENCE_SECONDS)

    def _produce(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._room.get()
                if self._closed:
                    return
                self._ready.put(item)
        except BaseException as caught:  # noqa: BLE001  it is raised again in the thread that asks
            error = caught
        finally:
            if isinstance(self._items, Generator):
                self._items.close()  # here, since files and databases may be bound to the thread that opened them
            self._ready.put(_End(error))
