"""Copies of committed checkpoints on an object store that outlives the machine."""

from __future__ import annotations

import contextlib
from pathlib import PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import FileOperations, create_file, explain
from holdfast.adapters.state_store.archive.object_store import fingerprint
from holdfast.adapters.state_store.checkpoint_verification import read_manifest, verify
from holdfast.adapters.state_store.hashing import CorruptCheckpoint, CorruptionKind, HashingStream
from holdfast.adapters.state_store.manifest import (
    COMMIT,
    LARGEST_MANIFEST,
    MANIFEST,
    SCHEMA,
    Manifest,
    OtherSchemaError,
    check_names,
    commit_of,
)
from holdfast.adapters.state_store.store_folder import folder_name
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.archive.lease import ArchiveLease
    from holdfast.adapters.state_store.archive.object_store import ObjectInfo, ObjectStore
    from holdfast.adapters.state_store.manifest import CheckpointFile
    from holdfast.ports.state_store import CheckpointInfo

_OWNER = "run"
_UPLOADS = 3  # of one file, before the store is held to be at fault


@final
class CheckpointArchive:
    """Stores copies of a run's checkpoints in ``objects``, the files of each under its name, as on disk.

    A copy is complete once its COMMIT exists, which is created after all files were verified, and deleted first.
    Objects are created and removed, never changed. Writing requires ``lease``; without it, the archive can only be
    read. One thread at a time. All methods raise ``StateError`` if the object store or the disk fails.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        lease: ArchiveLease | None = None,
        files: FileOperations | None = None,
        count: Callable[[int, int], object] = lambda _done, _total: None,
    ) -> None:
        self._objects = objects
        self._count = count
        self._lease = lease
        self._files = files or FileOperations()

    @property
    def name(self) -> str:
        """Return the name of the archive for messages."""
        return self._objects.name()

    def owner(self) -> str | None:
        """Return the id of the run that owns the copies, None if no run has claimed the archive."""
        data = self._objects.read(_OWNER)
        return None if data is None else data.decode("utf-8", "replace")

    def claim(self, run: str) -> None:
        """Make the run with the id ``run`` the owner; raises ``StateError`` if another run claims the archive first."""
        self._hold()
        if self.owner() not in (None, run):
            self._objects.remove(_OWNER)
        if not self._objects.create(_OWNER, run.encode()):
            msg = f"{self.name} was claimed by another run meanwhile: give this one another archive url or run.name"
            raise StateError(msg)

    def put(self, folder: Path, should_stop: Callable[[], bool] = lambda: False) -> str | None:
        """Copy a committed checkpoint; return its location, or None if ``should_stop`` ended it between two files.

        Files that an earlier attempt uploaded are kept if equal and otherwise replaced. A complete copy is left
        unchanged. Raises ``StateError`` if the archive has a different checkpoint of this name, ``folder`` is damaged,
        or the lease is lost.
        """
        with _on_disk(folder):
            manifest, data = read_manifest(self._files, folder), self._read(folder / MANIFEST)
            lease = self._hold()
            found = self._objects.find(folder.name)
            if self._is_there(folder.name, found, data):
                return self._objects.name(folder.name)
            verify(self._files, folder)
            self._clear()
            self._remove_others(folder.name, found, manifest, data)
            done = 0
            for file in manifest.files:
                if should_stop():
                    return None
                lease.confirm()
                self._bring(folder, file, found.get(f"{folder.name}/{file.path}"), _Sent(self._count, done, manifest))
                done += file.size
                self._count(done, manifest.num_bytes)
            self._create(f"{folder.name}/{MANIFEST}", data)
            lease.renew()
            self._create(f"{folder.name}/{COMMIT}", commit_of(data))
            return self._objects.name(folder.name)

    def holds(self, folder: Path) -> bool:
        """Return whether a complete copy of this checkpoint exists; its bytes were verified when it was made."""
        with _on_disk(folder):
            data = self._read(folder / MANIFEST)
        found = self._objects.find(folder.name)
        try:
            return self._is_there(folder.name, found, data)
        except StateError:  # another checkpoint of that step
            return False

    def list(self) -> Sequence[CheckpointInfo]:
        """Return the complete copies, oldest first, without verifying their bytes."""
        found = self._objects.find()
        infos = []
        for step in sorted({step for key in found if (step := step_of(key)) is not None}):
            with contextlib.suppress(CorruptCheckpoint):
                infos.append(read_copy(self._objects, step, found)[0].info(self._location(step)))
        return infos

    def fetch(self, step: int, into: Path) -> CheckpointInfo:
        """Download a copy into the new folder ``into``, durably, and verify every byte.

        After an exception ``into`` does not exist. Raises ``CorruptCheckpoint``, which names the object, for a damaged
        copy, and ``StateError`` if the archive or the disk fails.
        """
        found = self._objects.find(folder_name(step))
        manifest, data = read_copy(self._objects, step, found)
        check_sizes(self._objects, manifest, found)
        try:
            self._files.make_folder(into)
            try:
                download(self._objects, self._files, manifest, data, into)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.remove_tree(into)
                raise
        except OSError as error:
            msg = f"step {step} could not be fetched into {into}, {explain(error)}"
            raise StateError(msg) from error
        return manifest.info(self._location(step))

    def is_encrypted(self, step: int) -> bool:
        """Return whether a copy is encrypted; raises ``CorruptCheckpoint`` for an incomplete one."""
        return read_copy(self._objects, step, self._objects.find(folder_name(step)))[0].wrapped_key is not None

    def delete(self, step: int, *, for_good: bool = False) -> None:
        """Delete a copy, its COMMIT first, so the rest never seems complete; ``for_good`` first destroys its key."""
        self._hold()
        name = folder_name(step)
        if for_good:
            self._objects.destroy(f"{name}/{MANIFEST}")
        self._remove(name, self._objects.find(name).keys())
        self._clear()

    def sweep(self) -> None:
        """Delete the leftovers of interrupted uploads; no upload may be in progress."""
        self._hold()
        found = self._objects.find()
        for step in sorted({step for key in found if (step := step_of(key)) is not None}):
            name = folder_name(step)
            if not is_committed(name, found):
                self._remove(name, found.keys())
        self._clear()

    def _hold(self) -> ArchiveLease:
        if self._lease is None:
            msg = f"{self._objects.name()} was opened for reading: acquire its lease to write there"
            raise StateError(msg)
        self._lease.renew()
        return self._lease

    def _clear(self) -> None:
        self._objects.clear(lambda key: step_of(key) is not None)

    def _is_there(self, name: str, found: Mapping[str, ObjectInfo], data: bytes) -> bool:
        if not is_committed(name, found):
            return False
        stored = (self._objects.read(f"{name}/{MANIFEST}"), self._objects.read(f"{name}/{COMMIT}"))
        if stored != (data, commit_of(data)):
            msg = f"{self._objects.name(name)} is another checkpoint, or damaged: delete it, or archive elsewhere"
            raise StateError(msg)
        return True

    def _remove_others(self, name: str, found: Mapping[str, ObjectInfo], manifest: Manifest, data: bytes) -> None:
        """Remove the leftovers of other uploads under that name; the manifest goes before any file is replaced."""
        kept = {f"{name}/{file.path}" for file in manifest.files}
        described = f"{name}/{MANIFEST}"
        if described in found and self._objects.read(described) == data:
            kept.add(described)
        self._remove(name, found.keys() - kept)

    def _remove(self, name: str, keys: Collection[str]) -> None:
        first = [
            f"{name}/{COMMIT}",
            f"{name}/{MANIFEST}",
        ]  # so that a late COMMIT of a writer without the lease is void
        rest = sorted(key for key in keys if key.startswith(f"{name}/") and key not in first)
        for key in [*(key for key in first if key in keys), *rest]:
            self._hold()  # another run's objects may have these names by now
            self._objects.remove(key)

    def _create(self, key: str, data: bytes) -> None:
        if not self._objects.create(key, data):
            msg = f"{self._objects.name(key)} was written by another process meanwhile: stop one of the two runs"
            raise StateError(msg)

    def _bring(self, folder: Path, file: CheckpointFile, present: ObjectInfo | None, sent: _Sent) -> None:
        key, path = f"{folder.name}/{file.path}", folder / file.path
        for _ in range(_UPLOADS):
            if present is None:
                self._objects.upload(key, path, sent.add)
                present = self._objects.info(key)
            if present is not None and self._is_equal(key, present, path, file):
                return
            self._hold()  # another run may have uploaded its own by now
            self._objects.remove(key)
            present = None
        msg = f"{self._objects.name(key)} differs from {path} after each upload: check the store"
        raise StateError(msg)

    def _is_equal(self, key: str, present: ObjectInfo, path: Path, file: CheckpointFile) -> bool:
        if present.size != file.size:
            return False
        if present.tag is not None:
            is_saved, tag = fingerprint(self._files, path, present.tag)
            if is_saved != file.hash:
                msg = f"{path} was changed while it was archived: do not change the checkpoints of a run"
                raise StateError(msg)
            if tag == present.tag:
                return True
        return self._hash(key, file.size) == file.hash  # a store that encrypts with its own keys has different tags

    def _hash(self, key: str, size: int) -> str:
        hashed = HashingStream(self._objects.chunks(key, size))
        for _ in hashed:
            pass
        return hashed.hash

    def _read(self, path: Path) -> bytes:
        with self._files.open_file(path) as file:
            return file.readall()

    def _location(self, step: int) -> str:
        return self._objects.name(folder_name(step))


@final
class _Sent:
    """Counts the bytes of a file that were sent after the first ``done`` bytes of its checkpoint; for any thread."""

    def __init__(self, count: Callable[[int, int], object], done: int, manifest: Manifest) -> None:
        self._count = count
        self._done = done
        self._total = manifest.num_bytes
        self._lock = Lock()

    def add(self, num_bytes: int) -> None:
        """Count ``num_bytes`` more."""
        with self._lock:
            self._done += num_bytes
            self._count(min(self._done, self._total), self._total)


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except CorruptCheckpoint as corruption:
        msg = f"{folder} is not archived, as it is damaged: {corruption}"
        raise StateError(msg) from corruption
    except OSError as error:
        msg = f"{folder} could not be archived, {explain(error)}"
        raise StateError(msg) from error


def is_committed(name: str, found: Mapping[str, ObjectInfo]) -> bool:
    """Return whether ``found`` contains a complete copy of this name."""
    commit = found.get(f"{name}/{COMMIT}")
    return commit is not None and commit.size >= COMMIT_SIZE  # a kill may have truncated it


def step_of(key: str) -> int | None:
    """Return the step of the copy that the object ``key`` belongs to, None if it belongs to none."""
    name = key.partition("/")[0]
    digits = name.removeprefix("checkpoint-")
    return int(digits) if digits.isdecimal() and name == folder_name(int(digits)) else None


COMMIT_SIZE = len(commit_of(b""))


def read_copy(objects: ObjectStore, step: int, found: Mapping[str, ObjectInfo]) -> tuple[Manifest, bytes]:
    """Return the manifest of the copy of ``step`` among the objects ``found``, and its bytes.

    Raises ``CorruptCheckpoint`` for an incomplete or damaged copy, ``StateError`` for one of another version.
    """
    try:
        return _read_copy(objects, step, found)
    except CorruptCheckpoint as corruption:
        if corruption.kind is not CorruptionKind.BAD_COMMIT:
            raise
    return _read_copy(objects, step, found)  # the first reading may have been wrong


def _read_copy(objects: ObjectStore, step: int, found: Mapping[str, ObjectInfo]) -> tuple[Manifest, bytes]:
    name = folder_name(step)
    data = _read(objects, f"{name}/{MANIFEST}", found, LARGEST_MANIFEST)
    if _read(objects, f"{name}/{COMMIT}", found, COMMIT_SIZE) != commit_of(data):
        raise CorruptCheckpoint(
            CorruptionKind.BAD_COMMIT, f"{objects.name(f'{name}/{COMMIT}')} is not the hash of {MANIFEST}"
        )
    try:
        manifest = Manifest.from_bytes(data)
    except OtherSchemaError as error:
        msg = (
            f"{objects.name(name)} was written by another version, with schema {error} where this one has {SCHEMA}: "
            "use that version, or archive elsewhere"
        )
        raise StateError(msg) from error
    except CorruptCheckpoint as corruption:
        raise CorruptCheckpoint(
            corruption.kind, f"{objects.name(f'{name}/{MANIFEST}')} is not a manifest, {corruption}"
        ) from corruption
    if manifest.progress.step != step:
        raise CorruptCheckpoint(
            CorruptionKind.WRONG_NAME, f"{objects.name(f'{name}/{MANIFEST}')} is that of step {manifest.progress.step}"
        )
    return manifest, data


def check_sizes(objects: ObjectStore, manifest: Manifest, found: Mapping[str, ObjectInfo]) -> None:
    """Raise ``CorruptCheckpoint`` unless ``found`` has all files of the manifest, with the right sizes."""
    check_names(file.path for file in manifest.files)
    for file in manifest.files:
        key = f"{folder_name(manifest.progress.step)}/{file.path}"
        if key not in found:
            raise CorruptCheckpoint(CorruptionKind.MISSING_FILE, f"{objects.name(key)} is missing")
        if found[key].size != file.size:
            raise CorruptCheckpoint(
                CorruptionKind.WRONG_SIZE, f"{objects.name(key)} has {found[key].size} bytes instead of {file.size}"
            )


def download(objects: ObjectStore, files: FileOperations, manifest: Manifest, data: bytes, into: Path) -> None:
    """Download the files of the manifest, whose bytes are ``data``, into the empty folder ``into``, durably.

    A file with a wrong hash is read once more; raises ``CorruptCheckpoint`` if it is wrong again.
    """
    inner = {into / parent for file in manifest.files for parent in PurePosixPath(file.path).parents} - {into}
    for folder in sorted(inner):
        files.make_folder(folder)
    for file in manifest.files:
        key, path = f"{folder_name(manifest.progress.step)}/{file.path}", into / file.path
        if not (_bring(objects, files, key, file, path) or _bring(objects, files, key, file, path)):
            raise CorruptCheckpoint(
                CorruptionKind.WRONG_HASH, f"{objects.name(key)} does not have the bytes that were saved"
            )
    for path, content in ((into / MANIFEST, data), (into / COMMIT, commit_of(data))):
        create_file(files, path, content)
    for folder in [*sorted(inner, reverse=True), into]:
        files.sync_folder(folder)


def _bring(objects: ObjectStore, files: FileOperations, key: str, file: CheckpointFile, path: Path) -> bool:
    """Write the object ``key`` to ``path``, durably; return whether its hash is right, and delete it if not."""
    hashed = HashingStream(objects.chunks(key, file.size))
    files.write_chunks(path, hashed)
    if hashed.hash != file.hash:
        files.remove_file(path)
        return False
    files.sync_file(path)
    return True


def _read(objects: ObjectStore, key: str, found: Mapping[str, ObjectInfo], largest: int) -> bytes:
    if key not in found:
        raise CorruptCheckpoint(CorruptionKind.INCOMPLETE, f"{objects.name(key)} is missing")
    if found[key].size > largest:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{objects.name(key)} has more than {largest} bytes")
    content = objects.read(key)
    if content is None:
        raise CorruptCheckpoint(CorruptionKind.INCOMPLETE, f"{objects.name(key)} is missing")
    return content
