"""Encryption of shards: a data key for each, wrapped by the provider's key."""

from __future__ import annotations

from base64 import b64decode, b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING, final
from uuid import uuid4

from blake3 import blake3

from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
from holdfast.adapters.shared.encryption.streaming_aead import (
    SMALL_SEGMENT_SIZE,
    AuthenticationError,
    Encryptor,
    decrypt_stream,
    encrypt_stream,
    encrypted_size,
    new_key,
)
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError
from holdfast.domain.errors import StateError
from holdfast.ports.key_provider import WrappedKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import FileIO

    from holdfast.ports.key_provider import KeyProvider


@final
class ShardCipher:
    """Encrypts the files of one shard; each can be read only under its own name, in its own shard.

    Segments are small, as rows are read at random places. Reading raises ``CorruptTokensError`` if the bytes differ
    from those that were written.
    """

    def __init__(self, shard_id: str, key: bytes, wrapped: WrappedKey) -> None:
        self._id = shard_id
        self._key = key
        self._wrapped = wrapped

    def size(self, num_bytes: int) -> int:
        """Return how many bytes a file of ``num_bytes`` takes."""
        return encrypted_size(num_bytes, SMALL_SEGMENT_SIZE)

    def encryptor(self, name: str) -> Encryptor:
        """Return an encryptor that takes the file ``name`` piece by piece."""
        return Encryptor(self._key, self._belongs_to(name), SMALL_SEGMENT_SIZE)

    def encrypt(self, name: str, data: bytes) -> bytes:
        """Return the encrypted file ``name`` of ``data``."""
        return b"".join(encrypt_stream(self._key, self._belongs_to(name), [data], SMALL_SEGMENT_SIZE))

    def decrypt(self, name: str, data: bytes) -> bytes:
        """Return the plaintext of ``data``, the encrypted file ``name``."""
        with _damage():
            belongs_to = self._belongs_to(name)
            return b"".join(decrypt_stream(self._key, belongs_to, [data], name=name, segment_size=SMALL_SEGMENT_SIZE))

    def open(self, name: str, file: FileIO) -> EncryptedFile:
        """Return ``file``, which the result owns, for reading at any place."""
        with _damage():
            return EncryptedFile(
                file, self._key, self._belongs_to(name), name=str(file.name), segment_size=SMALL_SEGMENT_SIZE
            )

    def read(self, file: EncryptedFile, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the plaintext of ``file``, which ``open`` returned, from ``offset`` on."""
        with _damage():
            return file.read(offset, size)

    def hidden(self, text: str) -> str:
        """Return a keyed hash of ``text``, for a file name that does not reveal ``text``."""
        key = blake3(self._key, derive_key_context="holdfast names beside a shard of tokens").digest()
        return str(blake3(text.encode("utf-8", "surrogatepass"), key=key).hexdigest(length=16))

    def to_json(self) -> dict[str, str]:
        """Return the fields that ``ShardEncryption.open`` needs; they are useless without the provider's key."""
        wrapped = b64encode(self._wrapped.data).decode("ascii")
        return {"id": self._id, "key_id": self._wrapped.key_id, "wrapped_key": wrapped}

    def _belongs_to(self, name: str) -> bytes:
        return f"{self._id}/{name}".encode()


@final
class ShardEncryption:
    """Makes the ciphers of new shards with keys wrapped by ``provider``, and recovers those of stored shards."""

    def __init__(self, provider: KeyProvider) -> None:
        self._provider = provider
        self._opened: dict[bytes, ShardCipher] = {}

    def new(self) -> ShardCipher:
        """Return the cipher of a new shard."""
        shard_id, key = uuid4().hex, new_key()
        return ShardCipher(shard_id, key, self._provider.wrap(key, _context(shard_id)))

    def open(self, record: Mapping[str, str]) -> ShardCipher:
        """Return the cipher whose ``to_json`` gave ``record``; each key is unwrapped once.

        Raises ``StateError`` if the provider does not have the key that wrapped it.
        """
        shard_id = record["id"]
        wrapped = WrappedKey(record["key_id"], b64decode(record["wrapped_key"]))
        if wrapped.data not in self._opened:
            try:
                key = self._provider.unwrap(wrapped, _context(shard_id))
            except StateError as error:
                msg = f"tokens in the cache cannot be decrypted with data.cache.encryption: {error}"
                raise StateError(msg) from error
            self._opened[wrapped.data] = ShardCipher(shard_id, key, wrapped)
        return self._opened[wrapped.data]


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except AuthenticationError as error:
        raise CorruptTokensError(str(error)) from error


def _context(shard_id: str) -> bytes:
    return f"holdfast tokens {shard_id}".encode()
