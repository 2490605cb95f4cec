"""Stores figures in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.ports.monitor import Monitor, Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.ports.monitor import EndState, NoteKind, RunDescription


@final
class MemoryMonitor(Monitor):
    """Stores the figures in ``records``, in the order of the calls, for tests and for hosts that read them."""

    def __init__(self) -> None:
        self.records: list[tuple[int, dict[str, float]]] = []
        self._closed = False

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self.records.append((step, dict(metrics)))

    @override
    def rewind(self, step: int) -> None:
        self.records[:] = [record for record in self.records if step > 0 and record[0] <= step]

    @override
    def close(self) -> None:
        self._closed = True


@final
class MemoryTracker(Tracker):
    """Stores the figures in ``records``, the texts in ``notes`` and the rest of a run in attributes, for tests."""

    def __init__(self) -> None:
        self.run: RunDescription | None = None
        self.records: list[tuple[int, dict[str, float]]] = []
        self.notes: list[tuple[int, NoteKind, str]] = []
        self.end: EndState | None = None
        self._closed = False

    @override
    def begin(self, run: RunDescription) -> None:
        self.run = run

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self.records.append((step, dict(metrics)))

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        if not self._closed:
            self.notes.append((step, kind, text))

    @override
    def rewind(self, step: int) -> None:
        self.records[:] = [record for record in self.records if step > 0 and record[0] <= step]

    @override
    def flush(self) -> None:
        pass

    @override
    def finish(self, state: EndState) -> None:
        self.end = state

    @override
    def close(self) -> None:
        self._closed = True
