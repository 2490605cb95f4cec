"""Writes a checkpoint into a staging folder: hashed and durable before it is published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.state_store.corruption import CorruptCheckpoint
from holdfast.adapters.state_store.hashing import HashingStream
from holdfast.adapters.state_store.manifest import (
    COMMIT,
    MANIFEST,
    CheckpointFile,
    Manifest,
    check_names,
    commit_of,
)
from holdfast.adapters.state_store.sharded_save import (
    RANKS,
    StagedFileReader,
    await_key,
    await_reports,
    publish_key,
    report_failure,
    report_files,
)
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import JoinedPart, StatePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

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
        _write_durably(self.files, folder / MANIFEST, data)
        _write_durably(self.files, folder / COMMIT, commit_of(data))

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


def _write_durably(files: FileOperations, path: Path, data: bytes) -> None:
    files.write_file(path, data)
    files.sync_file(path)
