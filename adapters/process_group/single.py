"""A process group of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.ports.basic import BasicProcessGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.commands import Command


@final
class SingleProcessGroup(BasicProcessGroup):
    """The group of a process that trains alone: it never waits."""

    @property
    @override
    def rank(self) -> int:
        return 0

    @property
    @override
    def size(self) -> int:
        return 1

    @override
    def agree(self, commands: Sequence[Command]) -> Sequence[Command]:
        return tuple(commands)

    @override
    def gather(self, text: str) -> Sequence[str]:
        return (text,)

    @override
    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        return numbers

    @override
    def barrier(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass
