"""Encryption of checkpoints: a data key for each, wrapped by the provider's key."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
from holdfast.adapters.shared.encryption.streaming_aead import (
    AuthenticationError,
    decrypt_stream,
    encrypt_stream,
    new_key,
)
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.state_store.checkpoint_verification import check_hash
from holdfast.adapters.state_store.corruption import CorruptCheckpoint, CorruptionKind
from holdfast.adapters.state_store.hashing import HashingStream
from holdfast.adapters.state_store.manifest import CheckpointFile
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
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
