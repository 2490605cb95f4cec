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
    """What captured states may take of the host's memory: beside the next step, and behind their save.

    ``may_overlap`` is asked after each capture whether there is room to keep the copy beside the next step. With
    ``unpack``, which makes a folder of a snapshot's files for as long as its block lasts, the last one stays behind its
    save too, until ``is_tight`` says that memory is nearly full.
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
        """Return the snapshot that is held, None if there is none."""
        return self._snapshot

    def hold(self, snapshot: Snapshot) -> None:
        """Hold ``snapshot`` in place of the one before, if there is room."""
        self._snapshot = None if self._unpack is None or self._is_tight() else snapshot

    def drop_durable(self, durable_step: int) -> None:
        """Give up a copy of ``durable_step`` before the next one is captured, so that no two lie beside each other."""
        if self._snapshot is not None and self._snapshot.progress.step == durable_step:
            self._snapshot = None

    def drop_if_tight(self, durable_step: int) -> int | None:
        """Give up a copy of ``durable_step`` if memory is tight; return its step, None if nothing was given up."""
        if self._snapshot is None or self._snapshot.progress.step != durable_step or not self._is_tight():
            return None
        self._snapshot = None
        return durable_step

    def clear(self) -> None:
        """Give up whatever is held."""
        self._snapshot = None

    def unpacked(self) -> AbstractContextManager[Path]:
        """Return a folder of the held snapshot's files, to enter; raises ``StateError`` if there is no room for it."""
        assert self._snapshot is not None
        assert self._unpack is not None
        return self._unpack(self._snapshot)
