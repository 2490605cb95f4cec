"""Producing items ahead of the one who asks for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_PATIENCE_SECONDS = 10.0


@final
class Prefetch(Generic[T]):
    """Iterates ``items`` in a thread, at most ``depth`` of them ahead; an error is raised where its item would be.

    ``close`` ends the thread at its next item and waits for it, so that nothing runs on behind a finished run.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._items = items
        self._depth = depth
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._produce, name="holdfast-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next item, waiting for it if need be."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
        if self._error is not None:
            raise self._error
        raise StopIteration

    @property
    def fill(self) -> int:
        """Return how many items are ready."""
        return len(self._ready)

    def close(self) -> None:
        """Stop producing; twice is harmless. A thread that hangs in reading is left to itself after a while."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(_PATIENCE_SECONDS)

    def _produce(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
                    if self._closed:
                        return
                    self._ready.append(item)
                    self._changed.notify_all()
        except BaseException as caught:  # noqa: BLE001  it is raised again in the thread that asks
            error = caught
        finally:
            if isinstance(self._items, Generator):
                self._items.close()  # here, since files and databases may be bound to the thread that opened them
            with self._changed:
                self._error = error
                self._ended = True
                self._changed.notify_all()
