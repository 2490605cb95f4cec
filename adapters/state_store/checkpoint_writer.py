"""Writes a checkpoint into a staging folder: hashed and durable before it is published."""

from __future__ import annotations

import contextlib
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, final

from holdfast.adapters.shared.files.file_operations import create_file, explain, write_whole
from holdfast.adapters.state_store.hashing import CorruptCheckpoint, HashingStream, hash_file
from holdfast.adapters.state_store.manifest import (
    COMMIT,
    MANIFEST,
    CheckpointFile,
    Manifest,
    check_names,
    commit_of,
    key_from_record,
    key_record,
    stored_files,
)
from holdfast.adapters.state_store.verified_read import VerifiedPieces
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import JoinedPart, StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from typing_extensions import Buffer

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption, FileCipher
    from holdfast.ports.key_provider import WrappedKey
    from holdfast.ports.state_store import Snapshot, StateShare


@final
@dataclass(frozen=True, slots=True)
class CheckpointWriter:
    """Writes checkpoints into new folders; with ``encryption`` each is encrypted by a new key."""

    files: FileOperations
    encryption: CheckpointEncryption | None = None

    def write(self, snapshot: Snapshot, folder: Path, *, generation: int) -> Manifest:
        """Write ``snapshot`` into the new ``folder`` and return its manifest; all is durable but the folder's own name.

        The folder's name is the save's id. Each file is hashed before it reaches the disk, so the manifest describes
        the captured bytes. COMMIT is written last, once all other files are durable. Raises the exceptions of parts,
        ``OSError``, and ``StateError`` for invalid names of parts.
        """
        _check_part_names(snapshot)
        self.files.make_folder(folder)
        folders = _make_folders(self.files, folder, snapshot.parts)
        cipher = self.encryption and self.encryption.new(folder.name)
        if snapshot.share is not None:
            publish_key(self.files, folder, cipher and cipher.wrapped)
        stored = write_parts(self.files, snapshot, folder, cipher)
        if snapshot.share is not None:
            stored = self._join(snapshot, snapshot.share, folder, stored, cipher)
        told = replace(snapshot, parts=(), share=None)
        manifest = Manifest(folder.name, generation, told, stored, cipher and cipher.wrapped)
        self.seal(folder, manifest)
        for inner in reversed(folders):
            if inner.is_dir():
                self.files.sync_folder(inner)
        return manifest

    def seal(self, folder: Path, manifest: Manifest) -> None:
        """Write ``manifest`` and its hash into ``folder``, durably; raises ``OSError``."""
        data = manifest.to_bytes()
        create_file(self.files, folder / MANIFEST, data)
        create_file(self.files, folder / COMMIT, commit_of(data))

    def contribute(self, snapshot: Snapshot, folder: Path) -> None:
        """Write a rank's parts into the ``folder`` that rank 0 creates, and report them; raises as ``write`` does."""
        share = snapshot.share
        assert share is not None
        try:
            key = await_key(self.files, folder, share)
            cipher = None if key is None else self._joined_cipher(share.save_id, key)
            stored = write_parts(self.files, snapshot, folder, cipher)
            for inner in sorted({(folder / file.path).parent for file in stored}):
                self.files.sync_folder(inner)
            report_files(self.files, folder, share.rank, stored)
        except Exception as error:
            report_failure(self.files, folder, share.rank, explain(error) if isinstance(error, OSError) else error)
            raise

    def _joined_cipher(self, save_id: str, key: WrappedKey) -> FileCipher:
        if self.encryption is None:
            msg = f"rank 0 encrypts with the key {key.key_id}: give all processes the same state_store.encryption"
            raise StateError(msg)
        return self.encryption.join(save_id, key)

    def _join(
        self,
        snapshot: Snapshot,
        share: StateShare,
        folder: Path,
        own: Sequence[CheckpointFile],
        cipher: FileCipher | None,
    ) -> Sequence[CheckpointFile]:
        """Return the files of all ranks and the joined ones made of them; delete the files that were joined."""
        others = await_reports(self.files, folder, share)
        joined = [part for part in snapshot.parts if isinstance(part, JoinedPart)]
        stored = self.join(joined, folder, [*own, *others], cipher, verified=own)
        for name in sorted({name for part in joined for name in part.consumes}):
            self.files.remove_file(folder / name)
        self.files.remove_tree(folder / RANKS)
        for inner in sorted({(folder / name).parent for part in joined for name in part.consumes}):
            self.files.remove_folder(inner)
        return stored

    def join(
        self,
        joined: Sequence[JoinedPart],
        folder: Path,
        found: Sequence[CheckpointFile],
        cipher: FileCipher | None = None,
        *,
        verified: Sequence[CheckpointFile] = (),
    ) -> Sequence[CheckpointFile]:
        """Write the files ``joined`` into ``folder``; return them and those ``found`` there that they do not consume.

        All ``found`` are verified but those that are ``verified`` already. Raises ``OSError`` and ``StateError``.
        """
        stored = {file.path: file for file in found}
        with StagedFileReader(self.files, folder, cipher, stored) as reader:
            made = [_write_file(self.files, part.name, folder, part.chunks(reader.read), cipher) for part in joined]
            reader.check_others({file.path for file in verified})
        consumed = {name for part in joined for name in part.consumes}
        kept = [file for file in stored.values() if file.path not in consumed]
        return sorted((*kept, *made), key=lambda file: file.path)


def write_parts(
    files: FileOperations, snapshot: Snapshot, folder: Path, cipher: FileCipher | None
) -> Sequence[CheckpointFile]:
    """Write this process's parts of ``snapshot`` into ``folder``, durably."""
    own = sorted((part for part in snapshot.parts if isinstance(part, StatePart)), key=lambda part: part.name)
    return [_write_file(files, part.name, folder, part.chunks(), cipher) for part in own]


def _check_part_names(snapshot: Snapshot) -> None:
    try:
        check_names(part.name for part in snapshot.parts)
    except CorruptCheckpoint as corruption:
        msg = f"step {snapshot.progress.step} cannot be saved because its parts have invalid names: {corruption}"
        raise StateError(msg) from corruption


def _make_folders(files: FileOperations, folder: Path, parts: Sequence[StatePart | JoinedPart]) -> Sequence[Path]:
    """Make the folders that the parts' names need; return all, outer ones first."""
    inner = {parent for part in parts for parent in (folder / part.name).parents if folder in parent.parents}
    made = sorted(inner)
    for path in made:
        files.make_folder(path)
    return [folder, *made]


def _write_file(
    files: FileOperations, name: str, folder: Path, plain: Iterable[Buffer], cipher: FileCipher | None
) -> CheckpointFile:
    path = folder / name
    chunks = HashingStream(plain if cipher is None else cipher.encrypt(name, plain))
    files.write_chunks(path, chunks)
    files.sync_file(path)
    return CheckpointFile(name, chunks.size, chunks.hash)


RANKS = ".ranks"
_OPEN = "open.json"
_POLL_SECONDS = 0.05


def publish_key(files: FileOperations, folder: Path, key: WrappedKey | None) -> None:
    """Announce to the other ranks that the draft ``folder`` exists, and the key for its files."""
    files.make_folder(folder / RANKS)
    _leave(files, folder / RANKS / _OPEN, {"encryption": key_record(key)})


def await_key(files: FileOperations, folder: Path, share: StateShare) -> WrappedKey | None:
    """Wait until rank 0 has created the draft ``folder``; return its key, None if files are not encrypted.

    Raises ``StateError`` after ``share.patience`` seconds, or once the save is over.
    """
    deadline = time.monotonic() + share.patience
    while (record := _read(files, folder / RANKS / _OPEN)) is None:
        if share.is_over() or time.monotonic() > deadline:
            patience = f"{share.patience:.0f} s"
            msg = f"rank 0 did not create {folder} within {patience}, or has exited: look for the error in its output"
            raise StateError(msg)
        time.sleep(_POLL_SECONDS)
    return key_from_record(record.get("encryption"))


def report_files(files: FileOperations, folder: Path, rank: int, stored: Sequence[CheckpointFile]) -> None:
    """Report to rank 0 that the files ``stored`` are durable."""
    described = [{"path": file.path, "size": file.size, "hash": file.hash} for file in stored]
    _leave(files, folder / RANKS / record_of(rank), {"files": described})


def report_failure(files: FileOperations, folder: Path, rank: int, problem: object) -> None:
    """Report to rank 0 the error that prevents this rank's files, if the disk can still be written."""
    with contextlib.suppress(OSError):
        _leave(files, folder / RANKS / record_of(rank), {"problem": str(problem) or type(problem).__name__})


def await_reports(files: FileOperations, folder: Path, share: StateShare) -> Sequence[CheckpointFile]:
    """Wait for the files of all other ranks and return them as reported.

    Raises ``StateError`` if a rank reports a failure or does not report within ``share.patience`` seconds.
    """
    found: dict[int, Sequence[CheckpointFile]] = {}
    deadline = time.monotonic() + share.patience
    while missing := [rank for rank in range(1, share.num_ranks) if rank not in found]:
        for rank in missing:
            if (record := _read(files, folder / RANKS / record_of(rank))) is not None:
                found[rank] = _files_in(record, rank)
        if missing[0] not in found:
            if share.is_over() or time.monotonic() > deadline:
                msg = (
                    f"rank {missing[0]} of {share.num_ranks} did not write its part within {share.patience:.0f} s, "
                    "or has exited: look for the error in its output"
                )
                raise StateError(msg)
            time.sleep(_POLL_SECONDS)
    return [file for rank in sorted(found) for file in found[rank]]


@final
class StagedFileReader:
    """Reads files of the draft ``folder`` at any offset, decrypted if there is a ``cipher``.

    The bytes are compared with the hashes in ``stored``, or authenticated. Raises ``StateError`` if they are wrong.
    """

    def __init__(
        self, files: FileOperations, folder: Path, cipher: FileCipher | None, stored: Mapping[str, CheckpointFile]
    ) -> None:
        self._files = files
        self._folder = folder
        self._cipher = cipher
        self._stored = stored
        self._verified: set[str] = set()
        self._opened: dict[str, Callable[[int, int], bytes]] = {}
        self._stack = ExitStack()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the file ``name`` from ``offset`` on, fewer at its end."""
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name](offset, size)

    def _open(self, name: str) -> Callable[[int, int], bytes]:
        file = self._stack.enter_context(self._files.open_file(self._folder / name))
        if self._cipher is not None:
            return self._stack.enter_context(self._cipher.open(name, file)).read
        pieces = VerifiedPieces(file, self._folder / name)
        if pieces.hash != self._stored[name].hash:
            self._check(self._stored[name])  # the first reading may have been wrong
            pieces = VerifiedPieces(file, self._folder / name)
            if pieces.hash != self._stored[name].hash:
                self._raise_damaged(name)
        self._verified.add(name)
        return pieces.read

    def check_others(self, own: Collection[str]) -> None:
        """Verify the other ranks' files that were not read; raises ``StateError``. ``own`` are this rank's files."""
        for name, file in self._stored.items():
            if name not in self._verified and name not in own:
                self._check(file)

    def _check(self, file: CheckpointFile) -> None:
        path = self._folder / file.path
        if path.stat().st_size != file.size or all(hash_file(self._files, path) != file.hash for _ in range(2)):
            self._raise_damaged(file.path)

    def _raise_damaged(self, name: str) -> NoReturn:
        msg = f"{self._folder / name} does not have the bytes that its rank wrote: check the disk and the network"
        raise StateError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def record_of(rank: int) -> str:
    """Return the name of the file in ``RANKS`` by which ``rank`` reports."""
    return f"rank-{rank:05d}.json"


def _leave(files: FileOperations, path: Path, record: Mapping[str, Any]) -> None:
    write_whole(files, path, json.dumps(record).encode())


def _read(files: FileOperations, path: Path) -> Mapping[str, Any] | None:
    """Return the record at ``path``, None if it does not exist yet."""
    try:
        with files.open_file(path) as file:
            record = json.loads(file.read())
    except FileNotFoundError:
        return None
    assert isinstance(record, dict)
    return record


def _files_in(record: Mapping[str, Any], rank: int) -> Sequence[CheckpointFile]:
    if "problem" in record:
        msg = f"rank {rank} could not write its part: {record['problem']}"
        raise StateError(msg)
    try:
        return stored_files(record.get("files"))
    except CorruptCheckpoint as corruption:
        msg = f"rank {rank} described its files in the form of another version: {corruption}"
        raise StateError(msg) from corruption
