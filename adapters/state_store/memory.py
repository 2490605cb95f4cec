"""Checkpoints in the memory of the process, for tests and for runs that need not survive the process."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.adapters.state_store.manifest import check_names
from holdfast.adapters.state_store.store_folder import folder_name
from holdfast.domain.checkpoints.retention import Retention, StoredCheckpoint
from holdfast.domain.errors import StateError
from holdfast.ports.basic import BasicStateStore
from holdfast.ports.state_store import CheckpointInfo, Loaded, Snapshot, StatePart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.checkpoints.retention import RollBackFloor


@final
class MemoryStateStore(BasicStateStore):
    """Stores snapshots as bytes, subject to ``retention``; nothing survives the process, and nothing is ever rejected.

    ``load`` returns temporary folders, which are deleted with the store.
    """

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._stored: dict[int, tuple[CheckpointInfo, Mapping[str, bytes]]] = {}
        self._lock = RLock()
        self._scratch: Path | None = None

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        assert snapshot.share is None
        step = snapshot.progress.step
        with self._lock:
            if step in self._stored:
                msg = f"step {step} is already stored in memory and was left as it is: save another step"
                raise StateError(msg)
            files = self._bytes_of(snapshot)
            num_bytes = sum(map(len, files.values()))
            info = CheckpointInfo(
                snapshot.progress,
                snapshot.reason,
                f"memory:{folder_name(step)}",
                num_bytes,
                snapshot.evaluation_loss,
                snapshot.contract,
                snapshot.conditions,
                snapshot.saved_at,
            )
            self._stored[step] = (info, files)
            known = {
                stored: StoredCheckpoint(info.evaluation_loss, info.saved_at)
                for stored, (info, _) in self._stored.items()
            }
            for old in self._retention.expired(known, saved=step):
                del self._stored[old]
        return info

    @override
    def load(self, *, at_most: int | None = None) -> Loaded:
        with self._lock:
            steps = [step for step in self._stored if at_most is None or step <= at_most]
            if not steps:
                return Loaded(None, None)
            info, files = self._stored[max(steps)]
            folder = self._new_folder()
            for name, data in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return Loaded(info, folder)

    @override
    def supersede(self, step: int) -> None:
        with self._lock:
            for later in [stored for stored in self._stored if stored > step]:
                del self._stored[later]

    @override
    def list(self) -> Sequence[CheckpointInfo]:
        with self._lock:
            return [self._stored[step][0] for step in sorted(self._stored)]

    @override
    def spare(self, floor: RollBackFloor) -> None:
        self._retention = self._retention.protecting(floor)

    @override
    def flush(self) -> None:
        with self._lock:
            pass

    def _bytes_of(self, snapshot: Snapshot) -> Mapping[str, bytes]:
        try:
            check_names(part.name for part in snapshot.parts)
            return {part.name: b"".join(part.chunks()) for part in snapshot.parts if isinstance(part, StatePart)}
        except (CorruptCheckpoint, OSError) as error:
            why = explain(error) if isinstance(error, OSError) else f"its parts have invalid names: {error}"
            msg = f"step {snapshot.progress.step} could not be stored in memory, {why}"
            raise StateError(msg) from error

    def _new_folder(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="holdfast-"))
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return Path(tempfile.mkdtemp(dir=self._scratch))
