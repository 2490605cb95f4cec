"""Putting a trainable back into a state of before."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, final

from domain.errors import StateError
from domain.events import CheckpointRejected
from ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from application.memory_tier import MemoryTier
    from domain.progress import Progress
    from ports.event_bus import EventBus
    from ports.optimizer import Trainable
    from ports.process_group import ProcessGroup
    from ports.state_store import CheckpointInfo, Loaded, OpenFile, StateStore

_log = logging.getLogger(__name__)


@final
class Restoring:
    """Restores ``trainable`` from ``store`` or ``memory``; all ranks of ``group`` call each method.

    A process that is alone reads a checkpoint once. Of several each verifies it first, since they restore together.

    ``is_unfinished`` tells that it is being done, or that an error cut it in two: the state is of no step then.
    """

    def __init__(
        self, store: StateStore, trainable: Trainable, bus: EventBus, group: ProcessGroup, memory: MemoryTier
    ) -> None:
        self._store = store
        self._trainable = trainable
        self._bus = bus
        self._group = group
        self._memory = memory
        self.is_unfinished = False

    def from_store(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """Restore the newest valid checkpoint, of step ``at_most`` or before; return it, None if there is none.

        Raises ``StateError`` if another rank finds a checkpoint of another step, and if all turn out to be damaged once
        the state is no longer what it was.
        """
        if self._group.size == 1:
            return self._restore_once(at_most)
        loaded = self._load(at_most)
        self._tell_rejected(loaded)
        if loaded.folder is not None:
            self._take_over(loaded.folder, open_plainly)
            self.is_unfinished = False
        return loaded.info

    def from_memory(self, step: int) -> Progress | None:
        """Restore the copy in memory, if it is of ``step`` or before; return its progress, None without such a copy.

        For a process that is alone: a copy is of one rank. The state is that of the checkpoint, bit for bit.
        """
        held = self._memory.newest
        if held is None or held.progress.step > step:
            return None
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(self._memory.unpacked())
            except StateError as problem:
                _log.warning("what is in memory is not used, but what is on disk: %s", problem)
                return None
            with self._begun():
                self._trainable.restore(folder)
        return held.progress

    def back_to(self, step: int) -> Progress | None:
        """Restore the newest state of ``step`` or before and supersede later checkpoints; return its progress.

        None, with nothing changed, if there is none.
        """
        progress = self.from_memory(step) if self._group.size == 1 else None
        if progress is None:
            info = self.from_store(at_most=step)
            if info is None:
                return None
            self._memory.clear()  # what it holds may be of steps that are taken back
            progress = info.progress
        with self._begun():
            if self._group.rank == 0:
                self._store.supersede(progress.step)
        return progress

    def _take_over(self, folder: Path, open_file: OpenFile) -> None:
        self.is_unfinished = True
        self._trainable.restore(folder, open_file=open_file)

    def _restore_once(self, at_most: int | None) -> CheckpointInfo | None:
        loaded = self._store.restore(self._take_over, at_most=at_most)
        self._tell_rejected(loaded)
        if loaded.info is not None:
            self.is_unfinished = False
        elif self.is_unfinished and loaded.rejected:
            names = ", ".join(rejected.name for rejected in loaded.rejected)
            msg = (
                f"{names} turned out to be damaged while the state was read from them, and no other is left: they were "
                "set aside, and the same command starts anew"
            )
            raise StateError(msg)
        return loaded.info

    def _tell_rejected(self, loaded: Loaded) -> None:
        for rejected in loaded.rejected:
            self._bus.publish(CheckpointRejected(rejected.name, rejected.reason, rejected.location))

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self.is_unfinished = True
        yield
        self.is_unfinished = False

    def _load(self, at_most: int | None) -> Loaded:
        if self._group.rank > 0:
            self._group.barrier()
        loaded = self._store.load(at_most=at_most)
        if self._group.rank == 0:
            self._group.barrier()
        steps = self._group.gather(str(0 if loaded.info is None else loaded.info.progress.step))
        if len(set(steps)) > 1:
            msg = f"the ranks found checkpoints of steps {', '.join(steps)}: run.dir must be one folder of all hosts"
            raise StateError(msg)
        return loaded
