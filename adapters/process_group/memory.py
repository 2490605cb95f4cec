"""A process group whose ranks are threads of one process."""

from __future__ import annotations

import math
from itertools import chain
from threading import Condition
from typing import TYPE_CHECKING, Any, TypeVar, final

from typing_extensions import override

from holdfast.domain.errors import TrainingError
from holdfast.ports.process_group import KeyValueStore, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.commands import Command

T = TypeVar("T")


@final
class MemoryProcessGroup(ProcessGroup, KeyValueStore):
    """One member, ``rank``, of a group whose ranks are threads; without arguments, a group of one.

    ``linked`` makes the members of a larger group, which exchange values through one ``table``.

    If a member is closed, the other ones fail at once; if it does not arrive, they fail after the time-out.
    """

    def __init__(self, rank: int = 0, table: _Table | None = None) -> None:
        self._rank = rank
        self._table = table or _Table(1, timeout_seconds=0.0)
        self._round = 0

    @classmethod
    def linked(cls, size: int, *, timeout_seconds: float = 30.0) -> list[MemoryProcessGroup]:
        """Return the members of one group, by rank, one for each thread."""
        table = _Table(size, timeout_seconds=timeout_seconds)
        return [cls(rank, table) for rank in range(size)]

    @property
    @override
    def rank(self) -> int:
        return self._rank

    @property
    @override
    def size(self) -> int:
        return self._table.size

    @property
    @override
    def timeout_seconds(self) -> float:
        return self._table.timeout_seconds

    @override
    def agree(self, commands: Sequence[Command]) -> Sequence[Command]:
        return tuple(chain.from_iterable(self._meet(tuple(commands))))

    @override
    def gather(self, text: str) -> Sequence[str]:
        return self._meet(text)

    @override
    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        return tuple(math.fsum(column) for column in zip(*self._meet(numbers), strict=True))

    @override
    def barrier(self) -> None:
        self.agree(())

    @override
    def publish(self, key: str, text: str) -> None:
        self._table.texts[key] = text

    @override
    def lookup(self, key: str) -> str | None:
        return self._table.texts.get(key)

    @override
    def forget(self, key: str) -> None:
        self._table.texts.pop(key, None)

    @override
    def close(self) -> None:
        self._table.leave(self._rank)

    def _meet(self, brought: T) -> Sequence[T]:
        self._round += 1
        everyones: dict[int, T] = self._table.meet(self._round, self._rank, brought)
        return [everyones[rank] for rank in range(self.size)]


@final
class _Table:
    """The contributions of a group's ranks, round by round."""

    def __init__(self, size: int, *, timeout_seconds: float) -> None:
        self.size = size
        self.timeout_seconds = timeout_seconds
        self.texts: dict[str, str] = {}
        self._changed = Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._gone: set[int] = set()

    def meet(self, number: int, rank: int, gift: Any) -> dict[int, Any]:
        with self._changed:
            brought = self._rounds.setdefault(number, {})
            brought[rank] = gift
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_settled(brought), self.timeout_seconds)
            if rank in self._gone or len(brought) < self.size:
                self.leave(rank)
                raise TrainingError(_missing(rank, self.size, sorted(set(range(self.size)) - brought.keys())))
            self._rounds.pop(number - 1, None)
            return brought

    def leave(self, rank: int) -> None:
        with self._changed:
            self._gone.add(rank)
            self._changed.notify_all()

    def _is_settled(self, brought: dict[int, Any]) -> bool:
        return len(brought) == self.size or not self._gone.isdisjoint(set(range(self.size)) - brought.keys())


def _missing(rank: int, size: int, missing: list[int]) -> str:
    if not missing:
        return f"rank {rank} of {size} has left its group; end the run"
    ranks = ", ".join(str(number) for number in missing)
    return f"rank {rank} of {size} timed out waiting for rank {ranks}; look for its first error and restart"
