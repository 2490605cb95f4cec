"""Holds the last captured state in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from holdfast.ports.state_store import Snapshot


@final
class MemoryTier:
    """Limits the copies of the state in host memory: during the next step, and after their save.

    ``may_overlap`` is asked after each capture whether there is room for the copy beside the next step. With
    ``unpack``, a context manager that provides a folder of a snapshot's files, the last copy is kept after its save
    too, until ``is_tight`` says that memory is nearly full.
    """

    def __init__(
        self,
        *,
        may_overlap: Callable[[], bool] = lambda: True,
        is_tight: Callable[[], bool] = lambda: False,
        unpack: Callable[[Snapshot], AbstractContextManager[Path]] | None = None,
    ) -> None:
        self.may_overlap = may_overlap
        self._is_tight = is_tight
        self._unpack = unpack
        self._snapshot: Snapshot | None = None

    @property
    def newest(self) -> Snapshot | None:
        """Return the snapshot in memory, None if there is none."""
        return self._snapshot

    def hold(self, snapshot: Snapshot) -> None:
        """Hold ``snapshot`` in place of the previous copy, or no copy if memory is nearly full."""
        self._snapshot = None if self._unpack is None or self._is_tight() else snapshot

    def drop_durable(self, durable_step: int) -> None:
        """Free a copy of ``durable_step`` before the next one is captured, so that there are never two copies."""
        if self._snapshot is not None and self._snapshot.progress.step == durable_step:
            self._snapshot = None

    def drop_if_tight(self, durable_step: int) -> int | None:
        """Free a copy of ``durable_step`` if memory is tight; return its step, None if nothing was freed."""
        if self._snapshot is None or self._snapshot.progress.step != durable_step or not self._is_tight():
            return None
        self._snapshot = None
        return durable_step

    def clear(self) -> None:
        """Free the copy, if there is one."""
        self._snapshot = None

    def unpacked(self) -> AbstractContextManager[Path]:
        """Return a context manager for a folder of the snapshot's files; raises ``StateError`` if there is no room."""
        assert self._snapshot is not None
        assert self._unpack is not None
        return self._unpack(self._snapshot)
