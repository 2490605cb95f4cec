"""A base class that forwards to a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from holdfast.ports.process_group import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.commands import Command


class ForwardingProcessGroup(ProcessGroup):
    """Communicates through ``inner``."""

    def __init__(self, inner: ProcessGroup) -> None:
        self.inner = inner

    @property
    @override
    def rank(self) -> int:
        return self.inner.rank

    @property
    @override
    def size(self) -> int:
        return self.inner.size

    @property
    @override
    def timeout_seconds(self) -> float:
        return self.inner.timeout_seconds

    @override
    def agree(self, commands: Sequence[Command]) -> Sequence[Command]:
        return self.inner.agree(commands)

    @override
    def gather(self, text: str) -> Sequence[str]:
        return self.inner.gather(text)

    @override
    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        return self.inner.sum(numbers)

    @override
    def barrier(self) -> None:
        self.inner.barrier()

    @override
    def close(self) -> None:
        self.inner.close()
