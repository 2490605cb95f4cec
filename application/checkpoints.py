"""Saving and restoring the state of a run."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, final

from domain.cursor import Cursor
from domain.errors import StateError
from domain.events import CheckpointRejected, CheckpointSaved, CheckpointStarted
from domain.progress import Progress
from ports.state_store import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from domain.commands import SaveReason
    from ports.event_bus import EventBus
    from ports.optimizer import Trainable
    from ports.process_group import ProcessGroup
    from ports.state_store import Loaded, StatePart, StateStore


@final
class Checkpoints:
    """Captures a trainable into a state store and back; ``parts`` go into each checkpoint beside it (the tokenizer).

    All ranks of ``group`` call each method; the first one writes and sets aside, the others read what it left.
    """

    def __init__(
        self,
        store: StateStore,
        trainable: Trainable,
        bus: EventBus,
        group: ProcessGroup,
        *,
        parts: Sequence[StatePart] = (),
    ) -> None:
        self._store = store
        self._trainable = trainable
        self._bus = bus
        self._group = group
        self._parts = parts
        self._durable_step = 0

    def restore_latest(self) -> Progress:
        """Restore the newest valid checkpoint; return its progress, that of a new run if there is none.

        Raises ``StateError`` if another rank finds a checkpoint of another step.
        """
        loaded = self._load()
        steps = self._group.gather(str(0 if loaded.info is None else loaded.info.progress.step))
        if len(set(steps)) > 1:
            msg = f"the ranks found checkpoints of steps {', '.join(steps)}: run.dir must be one folder of all hosts"
            raise StateError(msg)
        for rejected in loaded.rejected:
            self._bus.publish(CheckpointRejected(rejected.name, rejected.reason, rejected.location))
        if loaded.info is None or loaded.folder is None:
            return Progress()
        self._trainable.restore(loaded.folder)
        self._durable_step = loaded.info.progress.step
        return loaded.info.progress

    def save(self, progress: Progress, reason: SaveReason, *, evaluation_loss: float | None = None) -> None:
        """Make ``progress`` durable, unless it is already or nothing was trained yet.

        ``evaluation_loss`` is what was measured at this step; one that is not finite counts as none.
        """
        if progress.step == self._durable_step:
            return
        self._bus.publish(CheckpointStarted(progress, reason))
        started = time.perf_counter()
        records = self._group.gather(json.dumps(progress.cursor.to_json()))
        cursor = Cursor.join([Cursor.from_json(json.loads(record)) for record in records])
        parts = (*self._trainable.capture(), *self._parts)
        loss = evaluation_loss if evaluation_loss is not None and math.isfinite(evaluation_loss) else None
        snapshot = Snapshot(replace(progress, cursor=cursor), reason, parts, loss)
        location = self._store.save(snapshot).location if self._group.rank == 0 else ""
        location = self._group.gather(location)[0]
        self._durable_step = progress.step
        self._bus.publish(CheckpointSaved(progress, location, reason, time.perf_counter() - started))

    def flush(self) -> None:
        """Wait until every save is durable."""
        if self._group.rank == 0:
            self._store.flush()
        self._group.barrier()

    def _load(self) -> Loaded:
        if self._group.rank > 0:
            self._group.barrier()
            return self._store.load()
        loaded = self._store.load()
        self._group.barrier()
        return loaded
