"""Authenticated encryption of files of any size, in Tink's published layouts AES256_GCM_HKDF_1MB and ..._4KB.

    header:   length of the header (1 byte, 40) | salt (32) | nonce prefix (7)
    segments: AES-256-GCM ciphertext | tag (16), each 1 MiB (or 4 KiB) but the last; the header counts to the first
    key of the file = HKDF-SHA256(key, salt, info=associated data)
    nonce of a segment = nonce prefix | number of the segment (4 bytes, big-endian) | 1 for the last one, else 0

https://developers.google.com/tink/streaming-aead/aes_gcm_hkdf_streaming
"""

from __future__ import annotations

import secrets
from itertools import chain, repeat
from typing import TYPE_CHECKING, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Buffer

    _Bytes = bytes | bytearray | memoryview[int]

KEY_SIZE = 32
SEGMENT_SIZE = 1 << 20
SMALL_SEGMENT_SIZE = 1 << 12
"""For files that are read here and there, a little at a time."""
TAG_SIZE = 16
_SALT_SIZE = 32
_PREFIX_SIZE = 7
HEADER_SIZE = 1 + _SALT_SIZE + _PREFIX_SIZE


@final
class AuthenticationError(StateError):
    """Encrypted bytes were changed, or their key or associated data is wrong."""


def new_key() -> bytes:
    """Return a random key."""
    return secrets.token_bytes(KEY_SIZE)


def encrypted_size(num_bytes: int, segment_size: int = SEGMENT_SIZE) -> int:
    """Return the number of encrypted bytes of ``num_bytes`` of plaintext."""
    num_segments = max(1, -(-(num_bytes + HEADER_SIZE) // (segment_size - TAG_SIZE)))
    return HEADER_SIZE + num_bytes + num_segments * TAG_SIZE


def encrypt_stream(
    key: bytes, associated_data: bytes, chunks: Iterable[Buffer], segment_size: int = SEGMENT_SIZE
) -> Iterator[bytes]:
    """Yield the encrypted file of ``chunks``, a segment at a time; memory holds one of them.

    Decrypting requires the same ``associated_data``, which is not stored. A chunk may change once the next is
    requested.
    """
    segments = SegmentCipher(key, associated_data, _new_header())
    yield segments.header
    text_size = segment_size - TAG_SIZE
    sizes = chain([text_size - HEADER_SIZE], repeat(text_size))
    for number, (text, is_last) in enumerate(_cut(chunks, sizes)):
        yield segments.encrypt(number, text, is_last=is_last)


def decrypt_stream(
    key: bytes, associated_data: bytes, chunks: Iterable[Buffer], *, name: str, segment_size: int = SEGMENT_SIZE
) -> Iterator[bytes]:
    """Yield the plaintext of ``chunks``, each segment once it is authenticated; memory holds one of them.

    Only the last segment proves that the file is complete. Raises ``AuthenticationError`` about ``name`` if it was
    changed.
    """
    pieces = _cut(chunks, chain([HEADER_SIZE, segment_size - HEADER_SIZE], repeat(segment_size)))
    header, is_all = next(pieces)
    if is_all:
        raise refusal(name, 0)
    segments = SegmentCipher(key, associated_data, bytes(header), name)
    for number, (segment, is_last) in enumerate(pieces):
        yield segments.decrypt(number, segment, is_last=is_last)


@final
class Encryptor:
    """Encrypts a file whose bytes arrive over time, as ``encrypt_stream`` does; holds at most one segment."""

    def __init__(self, key: bytes, associated_data: bytes, segment_size: int = SEGMENT_SIZE) -> None:
        self._segments = SegmentCipher(key, associated_data, _new_header())
        self._text_size = segment_size - TAG_SIZE
        self._number = 0
        self._held = bytearray()
        self._ready = [self._segments.header]

    def add(self, data: _Bytes) -> bytes:
        """Return the encrypted bytes that are complete with ``data``."""
        self._held += data
        text, start = memoryview(self._held), 0
        while len(text) - start > (size := self._size()):  # only the bytes after a segment show that it is not the last
            self._ready.append(self._segments.encrypt(self._number, text[start : start + size], is_last=False))
            self._number += 1
            start += size
        self._held = self._held[start:]
        return self._take()

    def finish(self) -> bytes:
        """Return the rest of the file."""
        self._ready.append(self._segments.encrypt(self._number, self._held, is_last=True))
        return self._take()

    def _size(self) -> int:
        return self._text_size - (0 if self._number else HEADER_SIZE)

    def _take(self) -> bytes:
        ready, self._ready = self._ready, []
        return b"".join(ready)


@final
class SegmentCipher:
    """Encrypts and decrypts single segments of the file that begins with ``header``.

    Raises ``ValueError`` for a key of another length, ``AuthenticationError`` for a header of another length.
    """

    def __init__(self, key: bytes, associated_data: bytes, header: bytes, name: str = "") -> None:
        if len(key) != KEY_SIZE:
            msg = f"a key must be {KEY_SIZE} bytes long, not {len(key)}"
            raise ValueError(msg)
        self.header = header
        self._name = name
        if len(header) != HEADER_SIZE or header[0] != HEADER_SIZE:
            raise refusal(name, 0)
        salt, self._prefix = header[1 : 1 + _SALT_SIZE], header[1 + _SALT_SIZE :]
        self._cipher = AESGCM(HKDF(SHA256(), length=KEY_SIZE, salt=salt, info=associated_data).derive(key))

    def encrypt(self, number: int, text: _Bytes, *, is_last: bool) -> bytes:
        """Return the segment of ``text``; each number must be used only once."""
        return self._cipher.encrypt(self._nonce(number, is_last=is_last), text, None)

    def decrypt(self, number: int, segment: _Bytes, *, is_last: bool) -> bytes:
        """Return the text of a segment; raises ``AuthenticationError`` if it was changed."""
        try:
            return self._cipher.decrypt(self._nonce(number, is_last=is_last), segment, None)
        except InvalidTag as error:
            raise refusal(self._name, number) from error

    def _nonce(self, number: int, *, is_last: bool) -> bytes:
        return self._prefix + number.to_bytes(4, "big") + bytes([is_last])


def _new_header() -> bytes:
    return bytes([HEADER_SIZE]) + secrets.token_bytes(_SALT_SIZE + _PREFIX_SIZE)


def _cut(chunks: Iterable[Buffer], sizes: Iterator[int]) -> Iterator[tuple[_Bytes, bool]]:
    """Yield the bytes of ``chunks`` in pieces of ``sizes``, the last one shorter, and whether it is the last.

    A piece may change once the next is requested. Whole pieces are views of their chunk.
    """
    held = bytearray()
    size = next(sizes)
    for chunk in chunks:
        view = memoryview(chunk)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        while len(held) + len(view) > size:  # only the bytes after a piece show that it is not the last
            room = size - len(held)
            if held:
                held += view[:room]
                yield held, False
                held = bytearray()
            else:
                yield view[:room], False
            view = view[room:]
            size = next(sizes)
        held += view
    yield held, True


def refusal(name: str, segment: int) -> AuthenticationError:
    """Return the error about a changed segment of ``name``."""
    msg = (
        f"{name} cannot be authenticated at its segment {segment}: it was changed, truncated or moved, or "
        "the key is wrong; use the key that it was written with, or another copy of the file"
    )
    return AuthenticationError(msg)
