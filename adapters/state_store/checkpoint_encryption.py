"""Encryption of checkpoints: a data key for each, wrapped by the provider's key."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
from holdfast.adapters.shared.encryption.streaming_aead import (
    AuthenticationError,
    decrypt_stream,
    encrypt_stream,
    new_key,
)
from holdfast.adapters.shared.files.committed_folder import ERASED, erase, is_erased
from holdfast.adapters.shared.files.file_operations import destroy_file, explain
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.adapters.state_store.checkpoint_verification import check_hash
from holdfast.adapters.state_store.hashing import CorruptCheckpoint, CorruptionKind, HashingStream
from holdfast.adapters.state_store.manifest import MANIFEST, CheckpointFile
from holdfast.adapters.state_store.store_folder import StoreFolder, is_there
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import FileIO

    from typing_extensions import Buffer

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.manifest import Manifest
    from holdfast.ports.key_provider import KeyProvider, WrappedKey

_CHUNK = 1 << 20


@final
class FileCipher:
    """Encrypts the files of one checkpoint; each can be decrypted only under the same name and checkpoint."""

    def __init__(self, save_id: str, key: bytes, wrapped: WrappedKey) -> None:
        self._save_id = save_id
        self._key = key
        self.wrapped = wrapped

    def encrypt(self, path: str, chunks: Iterable[Buffer]) -> Iterator[bytes]:
        """Yield the encrypted bytes of the file ``path``."""
        return encrypt_stream(self._key, self._belongs_to(path), chunks)

    def decrypt(self, path: str, chunks: Iterable[Buffer]) -> Iterator[bytes]:
        """Yield the file's bytes; raises ``StateError`` if they differ from those that were encrypted."""
        return decrypt_stream(self._key, self._belongs_to(path), chunks, name=path)

    def open(self, path: str, file: FileIO) -> EncryptedFile:
        """Return the file ``path`` for random access, decrypted from ``file``."""
        return EncryptedFile(file, self._key, self._belongs_to(path), name=path)

    def _belongs_to(self, path: str) -> bytes:
        return f"{self._save_id}/{path}".encode()


@final
class DecryptedCopy:
    """A folder below ``scratch`` that only this user can read, deleted with this object; ``files`` are its content."""

    def __init__(self, scratch: Path) -> None:
        self.files: list[CheckpointFile] = []
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=scratch))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@final
class CheckpointEncryption:
    """Makes ciphers with keys wrapped by ``provider``, and decrypts checkpoints into ``scratch``.

    ``scratch`` should be a file system in memory, so that no plaintext is written to a disk.
    """

    def __init__(self, provider: KeyProvider, scratch: Path) -> None:
        self._provider = provider
        self._scratch = scratch

    def new(self, save_id: str) -> FileCipher:
        """Return the cipher of a new checkpoint."""
        key = new_key()
        return FileCipher(save_id, key, self._provider.wrap(key, _context(save_id)))

    def join(self, save_id: str, wrapped: WrappedKey) -> FileCipher:
        """Return the cipher that ``new`` made in another process."""
        return FileCipher(save_id, self._provider.unwrap(wrapped, _context(save_id)), wrapped)

    def open(self, files: FileOperations, folder: Path, manifest: Manifest) -> DecryptedCopy:
        """Return the decrypted files of the checkpoint ``folder``, whose names and sizes are already verified.

        Each file is verified while it is read, and read again if its bytes are wrong. Raises ``CorruptCheckpoint`` for
        damage, and ``StateError`` for a wrong key or a full ``scratch``.
        """
        assert manifest.wrapped_key is not None
        cipher = self.join(manifest.save_id, manifest.wrapped_key)
        try:
            opened = DecryptedCopy(self._scratch)
            opened.files += [_decrypt(files, folder, stored, cipher, opened.folder) for stored in manifest.files]
        except OSError as error:
            msg = (
                f"{folder} cannot be decrypted into {self._scratch}, {explain(error)}, or choose another one in memory "
                "with state_store.encryption.scratch"
            )
            raise StateError(msg) from error
        return opened


def _decrypt(
    files: FileOperations, folder: Path, stored: CheckpointFile, cipher: FileCipher, into: Path
) -> CheckpointFile:
    """Decrypt a file of ``folder`` into the folder ``into``; return the decrypted file."""
    path = into / stored.path
    path.parent.mkdir(parents=True, exist_ok=True)
    refused: AuthenticationError | None = None
    for _ in range(2):
        encrypted = HashingStream(_read(files, folder / stored.path))
        plain = HashingStream(cipher.decrypt(stored.path, encrypted))
        try:
            files.write_chunks(path, plain)
        except AuthenticationError as error:
            refused = error
        else:
            if encrypted.hash == stored.hash:
                return CheckpointFile(stored.path, plain.size, plain.hash)
        files.remove_file(path)
    check_hash(files, folder, stored, 1)
    if refused is not None:
        raise refused
    raise CorruptCheckpoint(CorruptionKind.WRONG_HASH, f"{stored.path!r} returns different bytes each time it is read")


def _context(save_id: str) -> bytes:
    return f"holdfast checkpoint {save_id}".encode()


def _read(files: FileOperations, path: Path) -> Iterator[bytes]:
    with files.open_file(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


_STEP = re.compile(r"checkpoint-([0-9]{1,18})")
_KEY = b'"wrapped_key":'


@dataclass(frozen=True, slots=True)
class Erasable:
    """The folder of a checkpoint of ``step``, possibly damaged; ``is_encrypted`` if its manifest holds a key."""

    folder: Path
    step: int
    is_encrypted: bool


@final
class Eraser:
    """Erases checkpoints of the store under ``root``, which must have no other writer; raises ``OSError``.

        erased/checkpoint-N/ERASED.json   the record of an erased checkpoint

    A checkpoint is first moved there, so no process reads an incomplete checkpoint; the next call finds and erases a
    checkpoint that a crash left half erased.
    """

    def __init__(self, root: Path, files: FileOperations) -> None:
        self._folder = StoreFolder(root, files)
        self._files = files

    def found(self) -> Sequence[Erasable]:
        """Return the checkpoints that can be erased, including quarantined, superseded and half-erased ones."""
        return [
            Erasable(folder, int(match[1]), _holds_key(folder))
            for folder in self._folder.all_folders()
            if (match := _STEP.match(folder.name)) and not _is_erased(folder)
        ]

    def erase(self, found: Erasable) -> None:
        """Make ``found`` permanently unreadable, even if it is pinned."""
        grave = self._folder.move_to_erased(found.folder)
        keys = [path for path in [grave / MANIFEST] if is_there(path)]
        told = {"erased_at": datetime.now(UTC).isoformat(timespec="seconds"), "was_encrypted": found.is_encrypted}
        erase(self._files, grave, keys, told)
        if found.step in self._folder.pinned():
            self._folder.unpin(found.step)

    def clear(self) -> None:
        """Erase the leftovers of interrupted saves and deletions."""
        for folder in self._folder.leftovers():
            for manifest in sorted(folder.rglob(MANIFEST)):
                destroy_file(self._files, manifest)
        self._folder.prepare()
        self._folder.sweep()


def time_of_erasure(folder: Path) -> str | None:
    """Return the time at which ``folder`` was erased in ISO 8601, empty if unreadable, None if it was not erased."""
    if not _is_erased(folder):
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(parse_json(read_regular(folder / ERASED))["erased_at"])
    return ""


def erased_in(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the time of erasure of each erased checkpoint under ``root``; raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((root / "erased").iterdir()):
            if (time := time_of_erasure(folder)) is not None:
                yield folder.name, time


def _is_erased(folder: Path) -> bool:
    return is_there(folder / ERASED) and is_erased(folder)


def _holds_key(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return _KEY in read_regular(folder / MANIFEST)
    return False
