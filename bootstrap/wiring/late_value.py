"""A value that the container gets while a run is being built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@final
class LateValue(Generic[T]):
    """A value that is set at most once, before its first use; if it is never set, it is ``default``."""

    def __init__(self, default: T) -> None:
        self._value = default
        self._is_fixed = False

    def set(self, value: T) -> None:
        """Set the value, before any part has used it."""
        assert not self._is_fixed, "this value was set or used before"
        self._value, self._is_fixed = value, True

    def get(self) -> T:
        """Return the value, which is fixed from now on."""
        self._is_fixed = True
        return self._value


def late_or(late: LateValue[T | None], otherwise: T) -> T:
    """Return the late value, or ``otherwise`` if it is None."""
    value = late.get()
    return otherwise if value is None else value


def late_or_made(late: LateValue[T | None], make: Callable[[], T]) -> T:
    """Return the late value, or the result of ``make`` if it is None."""
    value = late.get()
    return make() if value is None else value
