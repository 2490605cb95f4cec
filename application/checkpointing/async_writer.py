"""Writes captured states to the state store in a thread, while training continues."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, final

from holdfast.application.concurrency.background import BackgroundWorker
from holdfast.domain.commands import AcknowledgeSave
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import StateShare

if TYPE_CHECKING:
    from holdfast.application.inbox import Inbox
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import Snapshot, StateStore


_CLOSING_SECONDS = 30.0  # for the shards of other ranks, which may be dead, after this rank has left the loop


@final
class AsyncCheckpointWriter:
    """Writes snapshots to ``store`` in a thread, and posts an ``AcknowledgeSave`` for each to ``inbox``.

    ``outcome`` is the outcome of the last save. Nothing is posted for shards of another rank's save, as that rank
    reports it.
    """

    def __init__(self, store: StateStore, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox
        self._thread = BackgroundWorker("checkpoints")
        self._awaited = ""
        self._patient_until = math.inf
        self.outcome: AcknowledgeSave | None = None

    def check_supports(self, trainable: Trainable) -> None:
        """Raise ``StateError`` if the state of ``trainable`` is sharded and the store does not support that."""
        if trainable.is_sharded and not self._store.takes_shares:
            msg = "the state is sharded over ranks, which this state store does not support: set state_store.kind=disk"
            raise StateError(msg)

    def share(self, save_id: str, group: ProcessGroup) -> StateShare:
        """Wait for the end of the previous save; return this rank's share of the save ``save_id``."""
        self._thread.settle(None)
        self._awaited = save_id
        patience = group.timeout_seconds / 2  # the other ranks may be waiting in a collective
        return StateShare(save_id, group.rank, group.size, patience, lambda: self._is_over(save_id))

    def submit(self, snapshot: Snapshot, number: int, started: float) -> None:
        """Queue ``snapshot`` as the save ``number``, which began at ``started`` (``perf_counter`` seconds)."""
        if snapshot.share is not None and snapshot.share.rank > 0:
            self._thread.submit(lambda: self._store.contribute(snapshot))
        else:
            self._thread.submit(lambda: self._write(snapshot, number, started))

    def settle(self) -> AcknowledgeSave:
        """Wait for all submitted saves; return the outcome of the last one."""
        self._thread.settle(None)
        assert self.outcome is not None
        return self.outcome

    def give_up(self) -> None:
        """Abandon an unfinished sharded save, whose outcome is already known."""
        self._awaited = ""

    def close(self) -> None:
        """Wait for all submitted saves, and end the thread."""
        self._patient_until = time.monotonic() + _CLOSING_SECONDS
        self._thread.close(None)

    def _is_over(self, save_id: str) -> bool:
        return self._awaited != save_id or time.monotonic() > self._patient_until

    def _write(self, snapshot: Snapshot, number: int, started: float) -> None:
        step, location, problem = snapshot.progress.step, "", None
        try:
            location = self._store.save(snapshot).location
        except StateError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  reported, and raised by ``save`` where training waits for it
            problem = f"step {step} could not be saved, {type(error).__name__}: {error}"
        self.outcome = AcknowledgeSave(number, step, location, time.perf_counter() - started, problem)
        self._inbox.post(self.outcome)
