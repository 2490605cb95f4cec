"""The manifest of a stored shard, which describes its content byte for byte."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError
from holdfast.domain.data.loss_mask import packed_size
from holdfast.domain.errors import DataError
from holdfast.ports.token_source import TokenShard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher, ShardEncryption

MANIFEST = "manifest.json"
TOKENS = "tokens.bin"
OFFSETS = "offsets.bin"
HASHES = "hashes.bin"
LOSS_MASK = "loss_mask.bin"
SCHEMA, MASKED_SCHEMA = 1, 2  # versions that know no loss mask must not read such a shard as if it had none
DTYPES = ("uint16", "uint32")


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """A shard ``name`` of ids of ``dtype``; ``digests`` are the BLAKE3 hashes of its files, by their names.

    The files are raw and little endian: ids as ``dtype``, offsets int64, hashes of documents uint64, and if the shard
    has a loss mask, its bits as ``pack_mask`` packs them. With a ``cipher`` they are encrypted, and so are their
    digests, the fingerprint and ``meta``.
    """

    name: str
    dtype: str
    num_tokens: int
    num_documents: int
    digests: Mapping[str, str]
    meta: Mapping[str, object]
    cipher: ShardCipher | None = field(default=None, compare=False, repr=False)

    @property
    def has_mask(self) -> bool:
        """Return whether the shard has a loss mask."""
        return LOSS_MASK in self.digests

    @property
    def shard(self) -> TokenShard:
        """Return the shard as the port describes it."""
        files = (TOKENS, OFFSETS, HASHES, *([LOSS_MASK] if self.has_mask else []))
        content = "".join([self.dtype, *(self.digests[name] for name in files)])
        return TokenShard(self.name, self.num_tokens, self.num_documents, blake3(content.encode()).hexdigest(length=16))

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the size of each file on the disk in bytes."""
        width = np.dtype(self.dtype).itemsize
        sizes = {TOKENS: width * self.num_tokens, OFFSETS: 8 * self.num_documents + 8, HASHES: 8 * self.num_documents}
        if self.has_mask:
            sizes[LOSS_MASK] = packed_size(self.num_tokens)
        return sizes if self.cipher is None else {name: self.cipher.size(size) for name, size in sizes.items()}

    def to_bytes(self) -> bytes:
        """Return the manifest as canonical JSON, a hash of itself included."""
        record: dict[str, object] = {
            "schema": MASKED_SCHEMA if self.has_mask else SCHEMA,
            "name": self.name,
            "dtype": self.dtype,
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
            "sizes": dict(self.sizes),
        }
        content = {"digests": dict(self.digests), "fingerprint": self.shard.fingerprint, "meta": dict(self.meta)}
        if self.cipher is None:
            record |= content
        else:
            encrypted = self.cipher.encrypt(MANIFEST, _encode(content))
            record["encryption"] = {**self.cipher.to_json(), "content": b64encode(encrypted).decode("ascii")}
        return _encode({**record, "self": _digest_of(record)})

    @classmethod
    def from_bytes(cls, data: bytes, encryption: ShardEncryption | None = None) -> ShardManifest:
        """Return the manifest that ``to_bytes`` wrote, encrypted if there is an ``encryption``, else plain.

        Raises ``CorruptTokensError`` for anything else, ``DataError`` for a manifest of a later version, ``StateError``
        without the key.
        """
        record = _checked(data)
        encrypted = record.get("encryption")
        if (encryption is None) != (encrypted is None):
            msg = f"{MANIFEST} is {'not encrypted' if encrypted is None else 'encrypted'}, unlike the rest of its cache"
            raise CorruptTokensError(msg)
        cipher = None
        if encryption is not None and encrypted is not None:
            cipher = encryption.open(encrypted)
            record |= json.loads(cipher.decrypt(MANIFEST, b64decode(encrypted["content"])))
        fields = ("name", "dtype", "num_tokens", "num_documents", "digests", "meta")
        return cls(**{name: record[name] for name in fields}, cipher=cipher)


def name_in(manifest: bytes) -> str:
    """Return the shard's name, without a key; raises the errors of ``ShardManifest.from_bytes``."""
    return str(_checked(manifest)["name"])


def is_encrypted_in(manifest: bytes) -> bool:
    """Return whether the shard is encrypted, without a key; raises the errors of ``ShardManifest.from_bytes``."""
    return _checked(manifest).get("encryption") is not None


def _checked(data: bytes) -> dict[str, Any]:
    record = _parse(data)
    schema = record.get("schema")
    if isinstance(schema, int) and schema > MASKED_SCHEMA:
        msg = (
            f"a shard was written by a later version of Holdfast (schema {schema}): use that version, or another folder"
        )
        raise DataError(msg)
    if record.pop("self", None) != _digest_of(record) or schema not in {SCHEMA, MASKED_SCHEMA}:
        msg = f"{MANIFEST} is not what was written"
        raise CorruptTokensError(msg)
    return record


def _encode(record: Mapping[str, object]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _digest_of(record: Mapping[str, object]) -> str:
    return blake3(_encode(record)).hexdigest()


def _parse(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        msg = f"{MANIFEST} cannot be read as JSON"
        raise CorruptTokensError(msg) from error
    if not isinstance(record, dict):
        msg = f"{MANIFEST} is not an object"
        raise CorruptTokensError(msg)
    return record
