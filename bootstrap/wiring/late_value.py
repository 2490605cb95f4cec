"""A value that the container gets while a run is being built."""

from __future__ import annotations

from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class LateValue(Generic[T]):
    """A value that is set at most once, before its first use; ``default`` if it is never set."""

    def __init__(self, default: T) -> None:
        self._value = default
        self._is_fixed = False

    def set(self, value: T) -> None:
        """Set the value; a part that was built before would not know of it."""
        assert not self._is_fixed, "this value was set or used before"
        self._value, self._is_fixed = value, True

    def get(self) -> T:
        """Return the value, which is fixed from now on."""
        self._is_fixed = True
        return self._value
