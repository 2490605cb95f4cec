"""A least-recently-used cache of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class LruCache(Generic[K, V]):
    """Keeps the ``size`` values that were asked for last; usable from several threads, as keys are strings."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, if it is still kept."""
        value = self._values.get(key)
        if value is not None:
            try:  # noqa: SIM105  neither that nor the lock, each as long as the rest: it is asked for each row
                self._values.move_to_end(key)
            except KeyError:  # let go of meanwhile
                pass
        return value

    def peek(self, key: K) -> V | None:
        """Return the value of ``key``, if it is still kept, without counting that as asking."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Keep ``value``, and let go of the one that was not asked for the longest."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Let go of the value of ``key``, if there is one."""
        with self._lock:
            self._values.pop(key, None)
