"""Checkpoints as folders on a local or mounted file system."""

from __future__ import annotations

import contextlib
import logging
from threading import RLock
from typing import TYPE_CHECKING, final

from typing_extensions import override

from adapters.shared.file_operations import FileOperations, explain
from adapters.state_store.defect import Defect
from adapters.state_store.draft import write_draft
from adapters.state_store.store_folder import StoreFolder, is_there
from adapters.state_store.verification import read_manifest, verify
from domain.errors import StateError
from domain.retention import Retention
from ports.state_store import CheckpointInfo, Loaded, Rejected, Snapshot, StateStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from adapters.state_store.manifest import Manifest

_log = logging.getLogger(__name__)


@final
class DiskStateStore(StateStore):
    """Keeps checkpoints under ``root``, as ``Retention`` says; one process at a time may write to it.

        checkpoints/checkpoint-N/   the parts' files, MANIFEST.json (their sizes and hashes), COMMIT (its hash)
        quarantine/                 what failed verification, named after its defect
        .tmp/  .trash/              a save or a deletion under way; what a crash left there goes with the next save

    Nothing is created before the first save. A disk that cannot be read raises ``StateError`` and sets nothing aside.
    Once a checkpoint is durable its save has succeeded: if older ones cannot be deleted, that is logged and tried
    again by the next save.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int,
        keep_every: int = 0,
        keep_best: int = 0,
        files: FileOperations | None = None,
    ) -> None:
        self._retention = Retention(keep, keep_every, keep_best)
        self._files = files or FileOperations()
        self._folder = StoreFolder(root.absolute(), self._files)
        self._lock = RLock()

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        step = snapshot.progress.step
        target, draft = self._folder.checkpoint(step), self._folder.new_draft()
        with self._lock:
            try:
                self._folder.prepare()
                self._refuse_stored(target)
                self._sweep()
                manifest = write_draft(self._files, snapshot, draft, generation=self._next_generation())
                self._folder.publish(draft, target)
            except OSError as error:
                msg = f"{target} could not be saved and older checkpoints are as before, {explain(error)}"
                raise StateError(msg) from error
            finally:
                self._folder.discard(draft)
            self._retire(saved=step)
        return _info(target, manifest)

    @override
    def load(self) -> Loaded:
        rejected: list[Rejected] = []
        with self._lock, _reading(self._folder.root):
            for folder in reversed(self._folder.checkpoints()):
                try:
                    manifest = verify(self._files, folder)
                except (Defect, OSError) as problem:
                    rejected += self._reject(folder, problem)
                else:
                    return Loaded(_info(folder, manifest), folder, tuple(rejected))
        return Loaded(None, None, tuple(rejected))

    @override
    def list(self) -> Sequence[CheckpointInfo]:
        with self._lock, _reading(self._folder.root):
            return [_info(folder, manifest) for folder, manifest in self._complete()]

    @override
    def flush(self) -> None:
        with self._lock:
            pass

    def _refuse_stored(self, target: Path) -> None:
        if is_there(target):
            msg = f"{target} is already stored and was left as it is: save another step, or move it away first"
            raise StateError(msg)

    def _complete(self) -> Iterator[tuple[Path, Manifest]]:
        for folder in self._folder.checkpoints():
            try:
                yield folder, read_manifest(self._files, folder)
            except Defect:
                continue
            except FileNotFoundError:
                if is_there(folder):
                    raise

    def _reject(self, folder: Path, problem: Defect | OSError) -> Sequence[Rejected]:
        if not is_there(folder):
            return []  # the process that trains has retired it meanwhile
        if isinstance(problem, OSError):
            msg = f"{folder} could not be read and was left in its place, {explain(problem)}"
            raise StateError(msg) from problem
        location = self._folder.set_aside(folder, problem.flaw)
        return [Rejected(folder.name, str(problem), str(location))]

    def _next_generation(self) -> int:
        generation = 0
        for folder in self._folder.checkpoints():
            with contextlib.suppress(Defect, OSError, StateError):  # an old one that cannot be read stops no save
                generation = max(generation, read_manifest(self._files, folder).generation)
        return generation + 1

    def _sweep(self) -> None:
        with self._put_off():
            self._folder.sweep()

    def _retire(self, *, saved: int) -> None:
        with self._put_off():
            stored = {manifest.progress.step: (folder, manifest) for folder, manifest in self._complete()}
            losses = {step: manifest.evaluation_loss for step, (_, manifest) in stored.items()}
            self._folder.retire([stored[step][0] for step in self._retention.doomed(losses, saved=saved)])

    @contextlib.contextmanager
    def _put_off(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StateError) as error:
            why = explain(error) if isinstance(error, OSError) else error
            _log.warning("deleting under %s is put off until the next save, %s", self._folder.root, why)


@contextlib.contextmanager
def _reading(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"the checkpoints under {root} could not be read, {explain(error)}"
        raise StateError(msg) from error


def _info(folder: Path, manifest: Manifest) -> CheckpointInfo:
    loss = manifest.evaluation_loss
    return CheckpointInfo(manifest.progress, manifest.reason, str(folder), manifest.num_bytes, loss)
