"""Produces the items of an iterator in a thread, ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_PATIENCE_SECONDS = 10.0
_URGENT_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class WaitAbandoned(Exception):
    """The item is not ready yet, and the caller does not want to wait any longer."""


@final
@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


@final
class Prefetch(Generic[T]):
    """Iterates ``items`` in a thread, at most ``depth`` of them ahead; an error is raised in place of its item.

    Only one thread at a time may iterate, and it alone may ``resize``. ``close`` ends the thread at its next item and
    waits for it, so that no thread runs on after the run.
    """

    def __init__(self, items: Iterator[T], *, depth: int) -> None:
        self._items = items
        self._depth = depth
        self._places = 0  # those that exist: more than the depth while items of a deeper queue wait
        # queues of C alone: every lock of Python's that the two threads share costs those that work the interpreter
        self._ready: SimpleQueue[T | _End] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        self.resize(depth)
        self._end: _End | None = None
        self._closed = False
        self._gave_up = False
        self._thread = threading.Thread(target=self._produce, name="holdfast-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next item, waiting for it if need be."""
        return self.next_unless(lambda: False)

    def next_unless(self, should_stop: Callable[[], bool]) -> T:
        """Return the next item as ``next`` does; raises ``WaitAbandoned`` if ``should_stop`` is true while it waits."""
        if self._end is None:
            item = self._awaited(should_stop)
            if not isinstance(item, _End):
                self._free_place()
                return item
            self._end = item
        if self._end.error is not None:
            raise self._end.error
        raise StopIteration

    @property
    def fill(self) -> int:
        """Return the number of items that are ready."""
        return max(0, self._places - self._room.qsize())

    def resize(self, depth: int) -> None:
        """Prefetch ``depth`` items from now on; items that are ready stay, in their order."""
        self._depth = depth
        while self._places < depth:
            self._places += 1
            self._room.put(None)
        with suppress(Empty):
            while self._places > depth:
                self._room.get_nowait()
                self._places -= 1

    def close(self, *, is_urgent: bool = False) -> None:
        """Stop producing; a second call has no effect.

        A thread that hangs in a read is abandoned after ten seconds, or after one if ``is_urgent`` or if a wait for it
        was abandoned before.
        """
        self._closed = True
        self._room.put(None)
        self._thread.join(_URGENT_SECONDS if is_urgent or self._gave_up else _PATIENCE_SECONDS)

    def _awaited(self, should_stop: Callable[[], bool]) -> T | _End:
        while True:
            try:
                return self._ready.get(timeout=_LOOK_SECONDS)
            except Empty:
                if should_stop():
                    self._gave_up = True
                    raise WaitAbandoned from None

    def _free_place(self) -> None:
        if self._places > self._depth:
            self._places -= 1
        else:
            self._room.put(None)

    def _produce(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._room.get()
                if self._closed:
                    return
                self._ready.put(item)
        except BaseException as caught:  # noqa: BLE001  raised again in the consuming thread
            error = caught
        finally:
            if isinstance(self._items, Generator):
                self._items.close()  # here, since files and databases may be bound to the thread that opened them
            self._ready.put(_End(error))
