"""Decompresses files as streams."""

from __future__ import annotations

import bz2
import io
import lzma
import sys
import zlib
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, final

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import WriteableBuffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


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


Format = Literal["txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]

_ADDED_LATER = (".json", ".bz2", ".xz")  # runs that began before do not read files with these suffixes

_PLAIN_TEXT = (
    *("txt", "text", "md", "markdown", "rst", "adoc", "org", "tex", "log"),
    *("py", "pyi", "ipy", "js", "mjs", "ts", "jsx", "tsx", "java", "kt", "scala", "go", "rs", "rb", "php", "pl"),
    *("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "cu", "cuh", "cs", "swift", "m", "mm", "r", "jl", "lua", "hs", "ml"),
    *("sh", "bash", "zsh", "ps1", "sql", "html", "htm", "css", "scss", "xml", "yaml", "yml", "toml", "ini", "cfg"),
)
_FORMATS: Mapping[str, Format] = {
    **{f".{suffix}": "txt" for suffix in _PLAIN_TEXT},
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_COMPRESSIONS: Mapping[str, Compression] = {".gz": "gz", ".zst": "zst", ".zstd": "zst", ".bz2": "bz2", ".xz": "xz"}
_REMEDIES: Mapping[str, str] = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "is an archive of several files: unpack it"),
    **dict.fromkeys(
        (".docx", ".doc", ".odt", ".rtf", ".pdf", ".pptx", ".xlsx", ".epub"),
        "is a document with a layout, not plain text: convert it to text",
    ),
}


def problem_with_suffix(path: str) -> str:
    """Return, as a clause, why ``path``, whose format is unknown, is not read and what to do."""
    suffixes = PurePosixPath(path.lower()).suffixes[-2:]
    remedy = next((_REMEDIES[suffix] for suffix in suffixes if suffix in _REMEDIES), None)
    return remedy or "has a suffix that does not identify its format: set data.format, say to jsonl"


def format_of(path: str) -> Format | None:
    """Return the format by the suffix of ``path``, ignoring one of a compression."""
    name = PurePosixPath(path.lower())
    return _FORMATS.get(PurePosixPath(name.stem if name.suffix in _COMPRESSIONS else name.name).suffix)


def compression_of(path: str) -> Compression:
    """Return the compression by the suffix of ``path``."""
    return _COMPRESSIONS.get(PurePosixPath(path.lower()).suffix, "none")


def is_known_of_old(path: str) -> bool:
    """Return whether the first rules for folders know the suffixes of ``path``."""
    return not any(suffix in _ADDED_LATER for suffix in PurePosixPath(path.lower()).suffixes[-2:])
