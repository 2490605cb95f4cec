"""File operations that are recorded, fail, or are the last thing that a process does."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot, StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A folder on which syncing costs nothing: here faults come from the test, not from the medium."""


class Around(Protocol):
    """What happens around an operation; it calls ``operation`` or does not."""

    def __call__(self, name: str, path: Path, operation: Callable[[], Any]) -> Any: ...


class WatchedFiles(FileOperations):
    """File operations each of which goes through ``around``."""

    def __init__(self, around: Around) -> None:
        self.around = around


def _watched(name: str) -> Callable[..., Any]:
    operation = getattr(FileOperations, name)

    def watched(self: WatchedFiles, path: Path, *arguments: Any) -> Any:
        return self.around(name, path, lambda: operation(self, path, *arguments))

    return watched


for _name in vars(FileOperations):
    if not _name.startswith("_") and _name != "remove_tree":
        setattr(WatchedFiles, _name, _watched(_name))


@dataclass
class Recorder:
    """Writes down the operations in their order."""

    operations: list[tuple[str, Path]] = field(default_factory=list)

    def __call__(self, name: str, path: Path, operation: Callable[[], Any]) -> Any:
        self.operations.append((name, path))
        return operation()


@dataclass
class FailAt:
    """Fails the operation numbered ``point``, counting from 0, and if ``for_good`` all that follow."""

    point: int
    code: int
    for_good: bool = False
    count: int = 0
    failed: list[str] = field(default_factory=list)

    def __call__(self, name: str, path: Path, operation: Callable[[], Any]) -> Any:
        number, self.count = self.count, self.count + 1
        if number == self.point or (self.for_good and number > self.point):
            self.failed.append(name)
            if name in {"write_file", "write_chunks"}:
                path.write_bytes(b"{")
            raise OSError(self.code, os.strerror(self.code), str(path))
        return operation()


@dataclass
class KillAt:
    """Kills this process before or after the operation numbered ``point // 2``: an even ``point`` means before."""

    point: int
    count: int = 0

    def __call__(self, name: str, path: Path, operation: Callable[[], Any]) -> Any:
        number, self.count = self.count, self.count + 1
        if self.point == 2 * number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = operation()
        if self.point == 2 * number + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


@dataclass(frozen=True)
class WatchedPart(StatePart):
    """A part that gives its file in two halves, each through ``around``."""

    name: str
    data: bytes
    around: Around

    def chunks(self) -> Iterator[bytes]:
        for half in (self.data[: len(self.data) // 2], self.data[len(self.data) // 2 :]):
            yield self.around("part", Path(self.name), lambda half=half: half)


def run_through(name: str, path: Path, operation: Callable[[], Any]) -> Any:
    """Let the operation be."""
    return operation()


def payload(step: int) -> dict[str, bytes]:
    """Return the files of ``step``."""
    return {"model.safetensors": b"%d weights " % step * 50, "rng/rank-00000": bytes([step]) * 64}


def snapshot_of(step: int, around: Around = run_through) -> Snapshot:
    """Return a snapshot of ``payload(step)``."""
    progress = Progress(step, 10 * step, Cursor(samples=step))
    return Snapshot(progress, "periodic", [WatchedPart(name, data, around) for name, data in payload(step).items()])


def files_under(folder: Path) -> dict[str, bytes]:
    """Return all files in ``folder`` and below, links left out."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def litter(root: Path) -> list[str]:
    """Return what lies where a save or a deletion under way would."""
    return [path.name for name in (".tmp", ".trash") for path in (root / name).glob("*")]
