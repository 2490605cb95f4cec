"""Archives to test at each kind of place, and objects that are watched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.object_store import ObjectStore
from holdfast.adapters.state_store.archive.open_object_store import open_object_store
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from holdfast.ports.testing.snapshots import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from holdfast.adapters.state_store.archive.object_store import ObjectInfo

FILES = {"model": b"weights" * 1000, "optimizer/state": b"moments" * 2000, "rng/rank-00000": b"r", "empty": b""}
QUICK = RetryPolicy(first_delay=0.01, max_delay=0.02, deadline=60)


def committed(root: Path, step: int, files: Mapping[str, bytes] = FILES) -> Path:
    """Return the folder of a checkpoint that was just saved."""
    DiskStateStore(root, Retention(100)).save(snapshot_of(step, files))
    return root / f"checkpoints/checkpoint-{step}"


def objects_at(url: str, policy: RetryPolicy = QUICK) -> ObjectStore:
    return open_object_store(url, mask=mask_text, policy=policy)


def archive_of(objects: ObjectStore) -> CheckpointArchive:
    """Return the archive of a process that just took the lease, and gives it back when it is asked to."""
    lease = ArchiveLease(objects, say=lambda _: None)
    assert lease.acquire()
    return CheckpointArchive(objects, lease=lease)


def content_of(objects: ObjectStore, folder: str = "") -> dict[str, bytes]:
    return {key: objects.read(key) for key in objects.find(folder)}


@dataclass
class WatchedObjects(ObjectStore):
    """Objects whose operations go through ``around``, which does them or does not; ``done`` are those so far."""

    objects: ObjectStore
    around: Callable[[str, str, Callable[[], object]], object] = lambda name, key, operation: operation()
    done: list[tuple[str, str]] = field(default_factory=list)

    def _watched(self, name: str, key: str, *arguments: object) -> object:
        self.done.append((name, key))
        return self.around(name, key, lambda: getattr(self.objects, name)(key, *arguments))

    def called(self, name: str) -> list[str]:
        """Return the keys of checkpoints' objects to which that was done."""
        return [key for done, key in self.done if done == name and key.startswith("checkpoint-")]

    def name(self, key: str = "") -> str:
        return self.objects.name(key)

    def find(self, folder: str = "") -> Mapping[str, ObjectInfo]:
        return self._watched("find", folder)

    def info(self, key: str) -> ObjectInfo | None:
        return self._watched("info", key)

    def read(self, key: str) -> bytes | None:
        return self._watched("read", key)

    def create(self, key: str, data: bytes) -> bool:
        return self._watched("create", key, data)

    def upload(self, key: str, path: Path, count: Callable[[int], object] = int) -> None:
        self._watched("upload", key, path, count)

    def remove(self, key: str) -> None:
        self._watched("remove", key)

    def chunks(self, key: str, size: int) -> Iterator[bytes]:
        return self._watched("chunks", key, size)

    def clear(self, is_litter: Callable[[str], bool]) -> None:
        self._watched("clear", is_litter)
