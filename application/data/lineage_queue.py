"""Sends lineage events in a thread of its own, so that no run waits for the receiver."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from holdfast.application.concurrency.thread_pool import BackgroundWorker
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.data.dataset_version import LineageEvent

_MOST_WAITING = 100  # a run has a few events; more wait only if the receiver does not answer


@final
class LineageQueue:
    """Passes events to ``send``, one after another, in a thread.

    An error never reaches the caller: the first one is reported, without secrets, and later events are tried again.
    ``close`` waits at most ``seconds``. Events beyond a hundred that wait are dropped.
    """

    def __init__(
        self, send: Callable[[LineageEvent], object], report: Callable[[str], object], *, seconds: float = 5.0
    ) -> None:
        self._send = send
        self._report = report
        self._seconds = seconds
        self._worker = BackgroundWorker("holdfast-lineage")
        self._has_failed = False

    def emit(self, event: LineageEvent) -> None:
        """Queue ``event``; returns at once."""
        if self._worker.waiting < _MOST_WAITING:
            self._worker.submit(partial(self._try, event))
        else:
            self._fail("the receiver does not answer")

    def close(self) -> None:
        """Wait for the queued events, at most ``seconds``; ``emit`` may be called again afterwards."""
        if not self._worker.settle(self._seconds):
            self._fail(f"the receiver has not answered within {self._seconds:g} seconds")
        self._worker.close(0.0)

    def _try(self, event: LineageEvent) -> None:
        try:
            self._send(event)
        except Exception as error:  # noqa: BLE001  lineage must not end a run
            self._fail(describe(error))

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._report(f"lineage events could not be sent, and the run goes on without them: {reason}")
