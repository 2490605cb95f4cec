"""Encrypted files with random access."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.encryption.streaming_aead import (
    HEADER_SIZE,
    SEGMENT_SIZE,
    TAG_SIZE,
    AuthenticationError,
    SegmentCipher,
    encrypted_size,
    refusal,
)
from holdfast.adapters.shared.files.regular_file import read_at

if TYPE_CHECKING:
    from io import FileIO
    from types import TracebackType
    from typing import Self

    _Bytes = bytes | bytearray | memoryview[int]

"""For files that are read here and there, a little at a time."""


@final
class EncryptedFile:
    """Reads an encrypted file at any offset, from several threads at once; owns ``file``, which must not change.

    Opening authenticates the last segment, and thereby ``size``, the number of bytes of the plaintext. Every other
    segment is authenticated before its bytes are returned; one that is not authentic is read once more. The last one is
    cached, so that sequential reads are fast. Raises ``AuthenticationError`` about ``name`` if the file was changed,
    and ``OSError`` if it cannot be read.
    """

    def __init__(
        self, file: FileIO, key: bytes, associated_data: bytes, *, name: str, segment_size: int = SEGMENT_SIZE
    ) -> None:
        self._file = file
        self._name = name
        self._segment_size = segment_size
        try:
            try:
                self._open(key, associated_data)
            except AuthenticationError:
                self._open(key, associated_data)
        except BaseException:
            file.close()
            raise

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer at the end of the file."""
        end = min(offset + size, self.size)
        if offset >= end:
            return b""
        # counted as if the header were plaintext, all segments hold the same number of bytes
        text_size = self._segment_size - TAG_SIZE
        first, start = divmod(offset + HEADER_SIZE, text_size)
        last, stop = divmod(end + HEADER_SIZE - 1, text_size)
        parts = [memoryview(self._segment(number)) for number in range(first, last + 1)]
        parts[-1] = parts[-1][: stop + 1 - (0 if last else HEADER_SIZE)]
        parts[0] = parts[0][start - (0 if first else HEADER_SIZE) :]
        return b"".join(parts)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    def _open(self, key: bytes, associated_data: bytes) -> None:
        stored = os.fstat(self._file.fileno()).st_size
        if stored < encrypted_size(0):
            raise refusal(self._name, 0)
        header = read_at(self._file.fileno(), 0, HEADER_SIZE)
        self._segments = SegmentCipher(key, associated_data, header, self._name)
        self._last = (stored - 1) // self._segment_size
        self.size = stored - HEADER_SIZE - (self._last + 1) * TAG_SIZE
        self._kept = (self._last, self._decrypted(self._last))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _segment(self, number: int) -> bytes:
        kept, text = self._kept  # read once: another thread may replace it
        if kept != number:
            text = self._decrypted(number)
            self._kept = (number, text)
        return text

    def _decrypted(self, number: int) -> bytes:
        try:
            return self._read(number)
        except AuthenticationError:
            return self._read(number)

    def _read(self, number: int) -> bytes:
        start = number * self._segment_size if number else HEADER_SIZE
        segment = read_at(self._file.fileno(), start, (number + 1) * self._segment_size - start)
        return self._segments.decrypt(number, segment, is_last=number == self._last)
