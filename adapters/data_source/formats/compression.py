"""Decompresses files as streams."""

from __future__ import annotations

import bz2
import io
import lzma
import sys
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

from typing_extensions import override

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import WriteableBuffer

Compression = Literal["none", "gz", "zst", "bz2", "xz"]

_PACKED_BYTES = 1 << 16
_PLAIN_BYTES = 1 << 18
_NAMES = {"gz": "gzip", "zst": "zstd", "bz2": "bzip2", "xz": "xz"}


class CorruptDataError(Exception):
    """A compressed file is truncated or does not unpack; the message is a clause."""


def unpacked(packed: io.BufferedReader, compression: Compression) -> io.BufferedReader:
    """Return the content of ``packed`` as a stream that can seek forwards; reading it may raise ``CorruptDataError``.

    Several members (gzip), frames (zstd) or streams (bzip2, xz), one after the other, are one text.
    """
    if compression == "none":
        return packed
    return ForwardStream.buffered(_UNPACK[compression](packed.read), f"{_NAMES[compression]} file")


@final
class ForwardStream(io.RawIOBase):
    """Text that is made in the same steps from any start of reading, so damage gives the same documents each time."""

    def __init__(self, pieces: Iterator[bytes], name: str) -> None:
        self._pieces = pieces
        self._name = name
        self._held = memoryview(b"")
        self._position = 0

    @classmethod
    def buffered(cls, pieces: Iterator[bytes], name: str) -> io.BufferedReader:
        """Return the text of ``pieces``, which can seek forwards; ``name`` is what it is made from, for messages."""
        return io.BufferedReader(cls(pieces, name), _PLAIN_BYTES)

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or target < self._position:
            msg = "this stream only moves forwards"
            raise io.UnsupportedOperation(msg)
        while self._position < target and self._fill():
            self._take(target - self._position)
        return self._position

    @override
    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        if not self._fill():
            return 0
        piece = self._take(len(target))
        target[: len(piece)] = piece
        return len(piece)

    def _fill(self) -> bool:
        try:
            while not self._held and (piece := next(self._pieces, None)) is not None:
                self._held = memoryview(piece)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the file system, not of bz2
                raise
            msg = f"it is a truncated or damaged {self._name} ({' '.join(str(error).split())})"
            raise CorruptDataError(msg) from error
        return len(self._held) > 0

    def _take(self, size: int) -> memoryview:
        piece, self._held = self._held[:size], self._held[size:]
        self._position += len(piece)
        return piece


def _gunzip(read: Callable[[int], bytes]) -> Iterator[bytes]:
    member, is_within = zlib.decompressobj(31), True
    while packed := read(_PACKED_BYTES):
        while packed := packed if is_within else packed.lstrip(b"\0"):  # some pad the end
            yield member.decompress(packed, _PLAIN_BYTES)
            packed, is_within = member.unconsumed_tail, not member.eof
            if member.eof:
                packed = member.unused_data
                member = zlib.decompressobj(31)
    if is_within:
        msg = "it ends in the middle of its data"
        raise EOFError(msg)


def _unframe(new_frame: Callable[[], Any], padding: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Unpack frames, each by a decompressor of its own; ``padding`` may stand between and behind them."""
    frame, is_within = new_frame(), True
    while packed := read(_PACKED_BYTES):
        packed = packed if is_within else packed.lstrip(padding)
        while packed or not (frame.needs_input or frame.eof):
            yield frame.decompress(packed, _PLAIN_BYTES)
            packed, is_within = b"", not frame.eof
            if frame.eof:
                packed = frame.unused_data.lstrip(padding)
                frame = new_frame()
    if is_within:
        msg = "it ends in the middle of its data"
        raise EOFError(msg)


_UNPACK: Mapping[str, Callable[[Callable[[int], bytes]], Iterator[bytes]]] = {
    "gz": _gunzip,
    "zst": partial(_unframe, zstd.ZstdDecompressor, b""),
    "bz2": partial(_unframe, bz2.BZ2Decompressor, b""),
    "xz": partial(_unframe, lzma.LZMADecompressor, b"\0"),
}
