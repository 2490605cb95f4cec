"""Checkpoints as folders on a local or mounted file system."""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import FileOperations, explain, write_whole
from holdfast.adapters.state_store.checkpoint_verification import (
    complete,
    next_generation,
    read_manifest,
    require_sound,
    verify,
)
from holdfast.adapters.state_store.checkpoint_writer import RANKS, CheckpointWriter, record_of, write_parts
from holdfast.adapters.state_store.hashing import CorruptCheckpoint, CorruptionKind
from holdfast.adapters.state_store.manifest import COMMIT, MANIFEST, Manifest, OtherSchemaError
from holdfast.adapters.state_store.store_folder import AccessGuard, StoreFolder, is_there, reading_under
from holdfast.adapters.state_store.verified_read import verify_while_read
from holdfast.domain.checkpoints.retention import Retention, Role, RollBackFloor, StoredCheckpoint
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import NonFiniteState, StateError
from holdfast.ports.state_store import CheckpointInfo, Loaded, RejectedCheckpoint, Snapshot, StateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption, DecryptedCopy
    from holdfast.adapters.state_store.manifest import CheckpointFile
    from holdfast.ports.state_store import JoinedPart, OpenFile

_log = logging.getLogger(__name__)


@final
class DiskStateStore(StateStore):
    """Stores checkpoints under ``root``, subject to ``retention``; one process at a time may write to it.

        checkpoints/checkpoint-N/   the parts' files, MANIFEST.json (their sizes and hashes), COMMIT (its hash)
        quarantine/                 checkpoints that failed verification, named after their defects
        superseded/  erased/        checkpoints that were rolled back; records of erased ones
        pins/                       an empty file checkpoint-N for each pinned checkpoint
        shares/                     shares that the ranks of a failed run left; the next start completes or deletes them
        .tmp/  .trash/              saves and deletions in progress; the next start deletes the leftovers of a crash

    Nothing is created before the first save. A disk that cannot be read raises ``StateError`` and quarantines nothing;
    failed deletions are logged. With ``encryption`` saved files are encrypted, and ``load`` returns a decrypted copy;
    plain checkpoints can still be read. If ``guard`` does not allow deletion, nothing is deleted.
    """

    def __init__(
        self,
        root: Path,
        retention: Retention,
        *,
        encryption: CheckpointEncryption | None = None,
        guard: AccessGuard | None = None,
        files: FileOperations | None = None,
    ) -> None:
        self.guard = guard or AccessGuard()
        self.retention = retention
        self._files = files or FileOperations()
        self._folder = StoreFolder(root.absolute(), self._files, self.guard)
        self._writer = CheckpointWriter(self._files, encryption)
        self._reader = CheckpointReader(self._files, self.guard, encryption)
        self._is_encrypted = encryption is not None
        self._shares = LeftShares(self._folder.root / "shares", self._files, self._writer)
        self._lock = RLock()
        self._elsewhere: dict[int, StoredCheckpoint] = {}
        self._held: set[int] = set()
        self._scrubbed: set[Path] = set()

    @property
    @override
    def takes_shares(self) -> bool:
        return True

    @property
    @override
    def keeps_shares(self) -> bool:
        return not self._is_encrypted  # rank 0 alone has the key of a checkpoint

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        step = snapshot.progress.step
        target, staging = self._folder.checkpoint(step), self._folder.staging_folder(snapshot.share)
        self.guard.require(Role.WRITE, f"saving {target}")
        with self._lock:
            try:
                self._folder.prepare()
                self._check_not_stored(target)
                with self._deferring():
                    self._folder.sweep()
                number = next_generation(self._files, self._folder.checkpoints())
                manifest = self._writer.write(snapshot, staging, generation=number)
                self._folder.publish(staging, target)
            except OSError as error:
                msg = f"{target} could not be saved, and older checkpoints are unchanged, {explain(error)}"
                raise StateError(msg) from error
            finally:
                self._folder.discard(staging)
            self._apply_retention(saved=step)
        return manifest.info(str(target))

    @override
    def contribute(self, snapshot: Snapshot) -> None:
        staging = self._folder.staging_folder(snapshot.share)
        self.guard.require(Role.WRITE, f"writing {staging}")
        with self._lock:
            try:
                self._writer.contribute(snapshot, staging)
            except OSError as error:
                msg = f"{staging} could not be written, {explain(error)}"
                raise StateError(msg) from error

    @override
    def leave_share(self, snapshot: Snapshot) -> None:
        if not self.keeps_shares:
            msg = "one rank alone cannot leave its share of an encrypted state: rank 0 has the key of a checkpoint"
            raise StateError(msg)
        self.guard.require(Role.WRITE, f"writing under {self._folder.root}")
        with self._lock:
            try:
                self._folder.prepare()
                self._shares.leave(snapshot)
            except OSError as error:
                msg = f"the share could not be written under {self._folder.root}, {explain(error)}"
                raise StateError(msg) from error

    @override
    def complete_shares(self, num_ranks: int, joined: Callable[[], Sequence[JoinedPart]]) -> CheckpointInfo | None:
        completed = None
        with self._lock, reading_under(self._folder.root):
            for folder in self._shares.folders():
                try:
                    completed = self._complete(folder, num_ranks, joined) or completed
                except StateError as problem:
                    _log.warning("the shares of a failed run in %s are not used, because %s", folder, problem)
                with self._deferring():
                    self._folder.discard(folder)
        return completed

    @override
    def load(self, *, at_most: int | None = None) -> Loaded:
        return self._newest(at_most, self._reader.load)

    @override
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        return self._newest(at_most, lambda folder: self._reader.restore(folder, into))

    @override
    def supersede(self, step: int) -> None:
        with self._lock, reading_under(self._folder.root):
            self._folder.supersede(step)
            self._elsewhere = {past: told for past, told in self._elsewhere.items() if past <= step}

    @override
    def list(self) -> Sequence[CheckpointInfo]:
        with self._lock, reading_under(self._folder.root):
            return [told.info(str(folder)) for folder, told in complete(self._files, self._folder.checkpoints())]

    @override
    def scrub(self) -> Sequence[RejectedCheckpoint]:
        with reading_under(self._folder.root):
            older = self._folder.checkpoints()[:-1]
            folder = next((folder for folder in older if folder not in self._scrubbed), None)
            if folder is None:  # all were verified: the next call starts again
                self._scrubbed.clear()
                return ()
            self._scrubbed.add(folder)
            try:
                verify(self._files, folder)
            except (CorruptCheckpoint, OSError) as problem:
                with self._lock:
                    return self._reject(folder, problem)
        return ()

    @override
    def tidy(self) -> None:
        with self._lock, self._deferring():
            self._folder.sweep()

    @override
    def spare(self, floor: RollBackFloor) -> None:
        self.retention = self.retention.protecting(floor)

    @override
    def flush(self) -> None:
        with self._lock:
            pass

    def adopt(self, step: int, bring: Callable[[Path], object]) -> None:
        """Store the checkpoint of ``step``: ``bring`` writes it, durable and verified, into the new folder it gets.

        Raises ``StateError`` if the step is already stored or the disk fails.
        """
        target, staging = self._folder.checkpoint(step), self._folder.staging_folder()
        with self._lock:
            try:
                self._folder.prepare()
                self._check_not_stored(target)
                bring(staging)
                self._folder.publish(staging, target)
            except OSError as error:
                msg = f"{target} could not be stored, {explain(error)}"
                raise StateError(msg) from error
            finally:
                self._folder.discard(staging)

    def pinned(self) -> Collection[int]:
        """Return the steps of the pinned checkpoints; raises ``StateError`` if they cannot be read."""
        with reading_under(self._folder.root):
            return self._folder.pinned()

    def folder_of(self, step: int) -> Path:
        """Return the folder of the checkpoint of ``step``, which may not exist."""
        return self._folder.checkpoint(step)

    def hold(self, step: int) -> bool:
        """Protect the checkpoint of ``step`` from retention until it is released; return whether it exists."""
        with self._lock, reading_under(self._folder.root):
            if found := is_there(self.folder_of(step)):
                self._held.add(step)
            return found

    def release(self, step: int) -> None:
        """End the protection of the checkpoint of ``step`` by ``hold``."""
        self._held.discard(step)

    def is_held(self, step: int) -> bool:
        """Return whether ``hold`` protects the checkpoint of ``step``."""
        return step in self._held

    def evict(self, step: int) -> None:
        """Delete the checkpoint of ``step``, which has a copy elsewhere; raises ``StateError`` if that fails."""
        with self._lock, reading_under(self._folder.root):
            told = read_manifest(self._files, self.folder_of(step)).snapshot
            self._folder.delete_durably(self.folder_of(step))
            self._elsewhere[step] = StoredCheckpoint(told.evaluation_loss, told.saved_at)

    def _newest(self, at_most: int | None, read: Callable[[Path], Loaded]) -> Loaded:
        rejected: list[RejectedCheckpoint] = []
        with self._lock, reading_under(self._folder.root):
            for folder in reversed(self._folder.checkpoints(at_most)):
                try:
                    loaded = read(folder)
                except (CorruptCheckpoint, OSError) as problem:
                    rejected += self._reject(folder, problem)
                else:
                    return replace(loaded, rejected=tuple(rejected))
            self._folder.check_not_erased()
        return Loaded(None, None, tuple(rejected))

    def _complete(
        self, folder: Path, num_ranks: int, joined: Callable[[], Sequence[JoinedPart]]
    ) -> CheckpointInfo | None:
        stored = complete(self._files, self._folder.checkpoints())
        manifest = self._shares.complete(
            folder,
            num_ranks,
            joined,
            generation=next_generation(self._files, self._folder.checkpoints()),
            newer_than=max((told.progress.step for _, told in stored), default=0),
        )
        if manifest is None:
            return None
        target = self._folder.checkpoint(manifest.progress.step)
        self._folder.publish(folder, target)
        return manifest.info(str(target))

    def _check_not_stored(self, target: Path) -> None:
        if is_there(target):
            msg = f"{target} is already stored and was left as it is: save another step, or move it away first"
            raise StateError(msg)

    def _reject(self, folder: Path, problem: CorruptCheckpoint | OSError) -> Sequence[RejectedCheckpoint]:
        if not is_there(folder):
            return []  # the training process has deleted it
        if isinstance(problem, OSError):
            msg = f"{folder} could not be read and was left in its place, {explain(problem)}"
            raise StateError(msg) from problem
        with contextlib.suppress(FileNotFoundError):  # another rank may have quarantined it
            return [RejectedCheckpoint(folder.name, str(problem), str(self._folder.set_aside(folder, problem.kind)))]
        return []

    def _apply_retention(self, *, saved: int) -> None:
        with self._deferring():
            found = complete(self._files, self._folder.checkpoints())
            stored = {manifest.progress.step: (folder, manifest.snapshot) for folder, manifest in found}
            kept = {*self._folder.pinned(), *self._held}
            known = {
                step: StoredCheckpoint(of.evaluation_loss, of.saved_at, step in kept)
                for step, (_, of) in stored.items()
            }
            expired = self.retention.expired({**self._elsewhere, **known}, saved=saved)
            self._folder.delete([stored[step][0] for step in expired if step in stored])

    @contextlib.contextmanager
    def _deferring(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StateError) as error:
            why = explain(error) if isinstance(error, OSError) else error
            _log.warning("deleting under %s is postponed until the next save, %s", self._folder.root, why)


@final
class CheckpointReader:
    """Reads the checkpoint in a folder, decrypted with ``encryption`` if necessary, if ``guard`` allows it.

    Both methods raise ``CorruptCheckpoint`` for a damaged checkpoint, ``OSError`` if the disk cannot be read, and
    ``StateError`` for a missing key or another version.
    """

    def __init__(self, files: FileOperations, guard: AccessGuard, encryption: CheckpointEncryption | None) -> None:
        self._files = files
        self._door = guard
        self._encryption = encryption

    def load(self, folder: Path) -> Loaded:
        """Return the checkpoint, each byte of it verified."""
        self._door.require(Role.READ, f"reading {folder}")
        manifest = read_manifest(self._files, folder)
        if manifest.wrapped_key is None:
            require_sound(self._files, folder, manifest)
            return Loaded(manifest.info(str(folder)), folder)
        opened = self._decrypted(folder, manifest)
        return Loaded(manifest.info(str(folder)), opened.folder, owner=opened)

    def restore(self, folder: Path, into: Callable[[Path, OpenFile], object]) -> Loaded:
        """Pass the checkpoint to ``into``, which reads it verified."""
        self._door.require(Role.READ, f"reading {folder}")
        manifest = read_manifest(self._files, folder)
        if manifest.wrapped_key is None:
            require_sound(self._files, folder, manifest, hashing=False)
            _hand_over(self._files, folder, manifest.files, into)
            return Loaded(manifest.info(str(folder)), folder)
        opened = self._decrypted(folder, manifest)
        _hand_over(self._files, opened.folder, opened.files, into)
        return Loaded(manifest.info(str(folder)), opened.folder, owner=opened)

    def _decrypted(self, folder: Path, manifest: Manifest) -> DecryptedCopy:
        assert manifest.wrapped_key is not None
        self._door.require(Role.KEY, f"opening {folder}, which is encrypted,")
        require_sound(self._files, folder, manifest, hashing=False)
        if self._encryption is None:
            key = manifest.wrapped_key.key_id
            msg = f"{folder} is encrypted with the key {key}: name that key with state_store.encryption.key"
            raise StateError(msg)
        return self._encryption.open(self._files, folder, manifest)


def _hand_over(
    files: FileOperations, folder: Path, stored: Sequence[CheckpointFile], into: Callable[[Path, OpenFile], object]
) -> None:
    try:
        verify_while_read(files, folder, stored, into)
    except NonFiniteState as error:
        raise CorruptCheckpoint(CorruptionKind.NOT_FINITE, str(error)) from error


_RECORD = re.compile(r"rank-(\d{5})\.json")


@final
class LeftShares:
    """The sets of shares under ``root``; one process at a time may complete a set. All methods raise ``OSError``."""

    def __init__(self, root: Path, files: FileOperations, writer: CheckpointWriter) -> None:
        self._root = root
        self._files = files
        self._writer = writer

    def leave(self, snapshot: Snapshot) -> None:
        """Write the parts of one rank's ``snapshot`` durably, without waiting for other ranks."""
        share = snapshot.share
        assert share is not None
        folder = self._root / share.save_id
        inner = {
            parent for part in snapshot.parts for parent in (folder / part.name).parents if folder in parent.parents
        }
        folders = [self._root, folder, folder / RANKS, *sorted(inner)]
        for path in folders:
            with contextlib.suppress(FileExistsError):  # another rank was first
                self._files.make_folder(path)
        stored = write_parts(self._files, snapshot, folder, None)
        manifest = Manifest(share.save_id, 0, replace(snapshot, parts=(), share=None), stored)
        for path in reversed(folders):
            self._files.sync_folder(path)
        write_whole(self._files, folder / RANKS / record_of(share.rank), manifest.to_bytes())
        self._files.sync_folder(folder / RANKS)

    def folders(self) -> Sequence[Path]:
        """Return the folders of all sets."""
        return [path for path in sorted(self._root.iterdir()) if path.is_dir()] if self._root.is_dir() else []

    def complete(
        self,
        folder: Path,
        num_ranks: int,
        joined: Callable[[], Sequence[JoinedPart]],
        *,
        generation: int,
        newer_than: int,
    ) -> Manifest | None:
        """Make a complete checkpoint in ``folder`` of the shares there; return its manifest. Repeatable after a crash.

        ``joined`` returns the files that are made of those of the ranks. None, with nothing changed, if its step is not
        later than ``newer_than``. Raises ``StateError`` unless each of ``num_ranks`` ranks has left its share of the
        same step, and if a file is damaged.
        """
        is_sealed = is_there(folder / COMMIT)
        shares = [self._read(folder / MANIFEST)] if is_sealed else self._shares_in(folder, num_ranks)
        if shares[0].progress.step <= newer_than:
            return None
        manifest = shares[0] if is_sealed else self._joined(folder, shares, joined(), generation)
        self._keep_only(folder, {folder / file.path for file in manifest.files} | {folder / MANIFEST, folder / COMMIT})
        return manifest

    def remove(self, folder: Path) -> None:
        """Delete the set ``folder``."""
        self._files.remove_tree(folder)

    def _shares_in(self, folder: Path, num_ranks: int) -> Sequence[Manifest]:
        """Return the manifests of all ranks in the order of ranks."""
        records = {int(match[1]) for path in self._records(folder) if (match := _RECORD.fullmatch(path.name))}
        if missing := sorted(set(range(num_ranks)) - records):
            msg = f"rank {missing[0]} of {num_ranks} left none"
            raise StateError(msg)
        if max(records) >= num_ranks:
            msg = f"{max(records) + 1} ranks or more left them, and {num_ranks} continue"
            raise StateError(msg)
        found = [self._read(folder / RANKS / record_of(rank)) for rank in range(num_ranks)]
        if len(steps := {manifest.progress.step for manifest in found}) > 1:
            msg = f"the ranks were at different steps, {min(steps)} to {max(steps)}"
            raise StateError(msg)
        return found

    def _joined(
        self, folder: Path, shares: Sequence[Manifest], joined: Sequence[JoinedPart], generation: int
    ) -> Manifest:
        for path in [folder / MANIFEST, *(folder / part.name for part in joined)]:
            if is_there(path):  # of an attempt that a crash ended
                self._files.remove_file(path)
        stored = self._writer.join(joined, folder, [file for share in shares for file in share.files])
        first = shares[0].snapshot
        cursor = Cursor.join([share.progress.cursor for share in shares])
        told = replace(first, progress=replace(first.progress, cursor=cursor))
        manifest = Manifest(folder.name, generation, told, stored)
        self._writer.seal(folder, manifest)
        self._files.sync_folder(folder)
        return manifest

    def _keep_only(self, folder: Path, listed: set[Path]) -> None:
        """Delete the files of ``folder`` that are not ``listed``, and the folders that are then empty."""
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    self._files.remove_folder(path)
                else:
                    self._files.sync_folder(path)
            elif path not in listed:
                self._files.remove_file(path)
        self._files.sync_folder(folder)

    def _records(self, folder: Path) -> Sequence[Path]:
        return sorted((folder / RANKS).iterdir()) if (folder / RANKS).is_dir() else []

    def _read(self, path: Path) -> Manifest:
        try:
            with self._files.open_file(path) as file:
                return Manifest.from_bytes(file.read())
        except (CorruptCheckpoint, OtherSchemaError) as error:
            msg = f"{path} is damaged or of another version: {error}"
            raise StateError(msg) from error
