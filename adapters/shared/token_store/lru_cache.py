"""A least-recently-used cache of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class LruCache(Generic[K, V]):
    """Holds the ``size`` values used last; usable from several threads, as keys are strings."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, None if it is not cached."""
        value = self._values.get(key)
        if value is not None:
            try:  # noqa: SIM105  neither that nor the lock, each as long as the rest: it is asked for each row
                self._values.move_to_end(key)
            except KeyError:  # evicted meanwhile
                pass
        return value

    def peek(self, key: K) -> V | None:
        """Return the value of ``key``, None if it is not cached, without counting this as a use."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Cache ``value``, and evict the least recently used one if necessary."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove the value of ``key``, if it is cached."""
        with self._lock:
            self._values.pop(key, None)
