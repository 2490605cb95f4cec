"""Saving and restoring the state of a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from domain.events import CheckpointRejected, CheckpointSaved, CheckpointStarted
from domain.progress import Progress
from ports.state_store import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from domain.commands import SaveReason
    from ports.event_bus import EventBus
    from ports.optimizer import Trainable
    from ports.state_store import StatePart, StateStore


@final
class Checkpoints:
    """Captures a trainable into a state store and back; ``parts`` go into each checkpoint beside it (the tokenizer)."""

    def __init__(
        self, store: StateStore, trainable: Trainable, bus: EventBus, *, parts: Sequence[StatePart] = ()
    ) -> None:
        self._store = store
        self._trainable = trainable
        self._bus = bus
        self._parts = parts
        self._durable_step = 0

    def restore_latest(self) -> Progress:
        """Restore the newest valid checkpoint; return its progress, that of a new run if there is none."""
        loaded = self._store.load()
        for rejected in loaded.rejected:
            self._bus.publish(CheckpointRejected(rejected.name, rejected.reason, rejected.location))
        if loaded.info is None or loaded.folder is None:
            return Progress()
        self._trainable.restore(loaded.folder)
        self._durable_step = loaded.info.progress.step
        return loaded.info.progress

    def save(self, progress: Progress, reason: SaveReason) -> None:
        """Make ``progress`` durable, unless it is already or nothing was trained yet."""
        if progress.step == self._durable_step:
            return
        self._bus.publish(CheckpointStarted(progress, reason))
        started = time.perf_counter()
        snapshot = Snapshot(progress, reason, (*self._trainable.capture(), *self._parts))
        info = self._store.save(snapshot)
        self._durable_step = progress.step
        seconds = time.perf_counter() - started
        self._bus.publish(CheckpointSaved(progress, info.location, info.reason, seconds))

    def flush(self) -> None:
        """Wait until every save is durable."""
        self._store.flush()
