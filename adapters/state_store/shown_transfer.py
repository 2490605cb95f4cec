"""The bytes of a checkpoint, counted and shown while they are read or written."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.domain.commands import SaveReason
from holdfast.domain.phase import Amount, saving_phase
from holdfast.ports.forwarding.state_store import ForwardingStateStore
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.state_store import CheckpointInfo, Loaded, OpenFile, Snapshot, StateFile, StateStore


@final
class ShownTransfer:
    """Shows ``phase`` with the bytes that were read or written so far, of ``total`` if that is known; thread-safe."""

    def __init__(self, show: ShowPhase, phase: str, total: int | None) -> None:
        self._show = show
        self._phase = phase
        self._total = total
        self._done = 0
        self._lock = Lock()
        self._show(phase, Amount(0, total))

    def add(self, num_bytes: int) -> None:
        """Count ``num_bytes`` more."""
        with self._lock:
            self._done += num_bytes
            self._show(self._phase, Amount(self._done, self._total))

    def opening(self, open_file: OpenFile) -> OpenFile:
        """Return a function that opens files as ``open_file`` does, and counts the bytes that are read of them."""

        @contextmanager
        def opened(path: Path) -> Iterator[StateFile]:
            with open_file(path) as file:
                yield _ShownFile(file, self)

        return opened

    def writing(self, part: StatePart) -> StatePart:
        """Return a part with the bytes of ``part``, which are counted when the next ones are asked for."""
        return _ShownPart(part, self)


@final
class _ShownFile:
    def __init__(self, file: StateFile, transfer: ShownTransfer) -> None:
        self._file = file
        self._transfer = transfer

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        self._transfer.add(len(data))
        return data

    def fill(self, offset: int, target: memoryview) -> int:
        num_bytes = self._file.fill(offset, target)
        self._transfer.add(num_bytes)
        return num_bytes


@final
class _ShownPart(StatePart):
    def __init__(self, part: StatePart, transfer: ShownTransfer) -> None:
        self.name = part.name
        self._part = part
        self._transfer = transfer

    @override
    def chunks(self) -> Iterator[bytes | bytearray | memoryview]:
        for chunk in self._part.chunks():
            yield chunk
            self._transfer.add(memoryview(chunk).nbytes)


@final
class ShownStateStore(ForwardingStateStore):
    """Stores checkpoints in ``inner``; ``show`` gets the bytes of restores, and of saves that training waits for.

    A save is measured by the size of the checkpoint before it. The shares of several ranks are not shown.
    """

    def __init__(self, inner: StateStore, show: ShowPhase) -> None:
        super().__init__(inner)
        self._show = show
        self._last_bytes: int | None = None

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        if snapshot.reason != SaveReason.PERIODIC and snapshot.share is None:
            transfer = ShownTransfer(self._show, saving_phase(snapshot.progress.step), self._last_bytes)
            parts = [transfer.writing(part) if isinstance(part, StatePart) else part for part in snapshot.parts]
            snapshot = replace(snapshot, parts=parts)
        info = super().save(snapshot)
        self._last_bytes = info.num_bytes
        return info

    @override
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        def shown(folder: Path, open_file: OpenFile) -> None:
            transfer = ShownTransfer(self._show, f"loading {folder.name}", size_of(folder))
            try:
                into(folder, transfer.opening(open_file))
            finally:
                self._show("")

        loaded = super().restore(shown, at_most=at_most)
        if loaded.info is not None:
            self._last_bytes = loaded.info.num_bytes
        return loaded


def size_of(folder: Path) -> int:
    """Return the bytes of all files in ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
