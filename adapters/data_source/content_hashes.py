"""Hashes of the content of data files, computed while the files are read."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, final

from xxhash import xxh3_128

from holdfast.adapters.data_source.verified_stream import LOCAL_BLOCK_BYTES, BlockDigests, VerifiedStream
from holdfast.adapters.shared.files.regular_file import read_at
from holdfast.domain.errors import DataError, StateError
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from holdfast.adapters.data_source.listed_file import ListedFile
    from holdfast.domain.data.data_files import DataFile, DataFiles

_BLOCK_BYTES = 8 << 20  # a part of a file, as sources read them side by side
_THREADS = 16


@final
class ContentHashes:
    """The hashes of files of this machine, and the digests of ``blocks`` of all files; any thread may add to them.

    A file's hash is the XXH3 of the 16-byte hashes of its 8 MiB blocks, so that blocks may be read in any order; it
    detects changes, but not two files that were made to have the same hash. A remote file is not hashed: the version
    that its server reports (an ETag) identifies it.
    """

    def __init__(self) -> None:
        self.blocks = BlockDigests()
        self._lock = Lock()
        self._parts: dict[tuple[str, str], dict[int, bytes]] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._read: dict[tuple[str, str], str] = {}

    def of(self, file: ListedFile) -> str | None:
        """Return the content hash of ``file``, or None while it is not known."""
        if not file.is_local:
            return file.unit.etag.replace(" ", "_")
        return self._read.get(_key(file)) or self._told.get(_key(file))

    def learn(self, file: ListedFile, content: str) -> None:
        """Record the content hash of ``file``, which was computed earlier."""
        with self._lock:
            self._told[_key(file)] = content

    def is_known(self, file: ListedFile, number: int) -> bool:
        """Return whether the block ``number`` of ``file`` was hashed."""
        key = _key(file)
        return key in self._read or number in self._parts.get(key, ())

    def add(self, file: ListedFile, number: int, digest: bytes) -> None:
        """Take the hash of the block ``number`` of ``file``.

        Raises ``StateError`` if all blocks are known and make another hash than the one that was learned.
        """
        key = _key(file)
        with self._lock:
            if key in self._read:
                return
            parts = self._parts.setdefault(key, {})
            parts[number] = digest
            total = max(1, -(-file.unit.size // _BLOCK_BYTES))
            if len(parts) < total:
                return
            read = xxh3_128(b"".join(parts[each] for each in range(total))).hexdigest()
            if self._told.get(key, read) != read:
                msg = (
                    f"the content of {file.unit.name} is not the one that was recorded, although its time and size "
                    "are: put the file back as it was"
                )
                raise StateError(msg)
            self._read[key] = read
            del self._parts[key]

    def find(self, files: Sequence[tuple[DataFile, ListedFile]], known: DataFiles | None) -> None:
        """Hash the unknown blocks of ``files``; with ``known``, only of files that have a content hash there.

        Hashes in ``known`` of files with the same stamp are adopted. Raises ``DataError`` if a file cannot be read.
        """
        if known is not None:
            then = {file.name: (file.stamp, file.content) for file in known.files if file.content is not None}
            files = [(told, stored) for told, stored in files if told.name in then]
            for told, stored in files:
                stamp, content = then[told.name]
                if told.content is None and told.stamp == stamp:
                    self.learn(stored, content)
        self.read([stored for _, stored in files])

    def read(self, files: Sequence[ListedFile]) -> None:
        """Hash those of ``files`` that have no hash yet, in parallel; raises ``DataError`` if a file is unreadable."""
        blocks = blocks_of([file for file in files if self.of(file) is None])
        with ThreadPoolExecutor(_THREADS, "holdfast-hash") as pool:
            for _ in pool.map(lambda block: self.read_block(*block), blocks):
                pass

    def read_block(self, file: ListedFile, number: int) -> None:
        """Hash the block ``number`` of ``file`` if it is not known; raises ``DataError`` if it cannot be read."""
        if self.is_known(file, number):
            return
        try:
            raw = io.FileIO(file.path)
            again = partial(read_at, raw.fileno())
            begin, end = number * _BLOCK_BYTES, (number + 1) * _BLOCK_BYTES
            tap = HashingTap(self, file, begin, end)
            with VerifiedStream(raw, file, self.blocks, again, is_confirmed=True, tap=tap.feed) as stream:
                stream.seek(begin)
                buffer = bytearray(LOCAL_BLOCK_BYTES)
                while stream.tell() < end and stream.readinto(buffer):
                    pass
        except OSError as error:
            msg = f"{file.unit.name} cannot be read ({describe(error)}): check that it exists and that you may read it"
            raise DataError(msg) from error
        if not file.is_unchanged() or not self.is_known(file, number):
            msg = (
                f"{file.unit.name} was changed while it was read: run the command again, and leave the files unchanged"
            )
            raise DataError(msg)


@final
class HashingTap:
    """Hashes the blocks of ``file`` between two positions from the bytes read of it, by one thread at a time.

    A block is hashed only if it is read from its first byte to its last without a jump.
    """

    def __init__(self, contents: ContentHashes, file: ListedFile, start: int, until: int | None) -> None:
        self._contents = contents
        self._file = file
        self._start = start
        self._until = file.unit.size if until is None else min(until, file.unit.size)
        self._hasher = xxh3_128()
        self._next = -1  # the position at which the current block continues
        if file.unit.size == 0:
            contents.add(file, 0, xxh3_128().digest())

    def feed(self, position: int, data: Buffer) -> None:
        """Take ``data``, read at ``position``."""
        view = memoryview(data)
        while view:
            number, offset = divmod(position, _BLOCK_BYTES)
            size = min(len(view), _BLOCK_BYTES - offset)
            if (
                offset == 0
                and self._start <= position < self._until
                and not self._contents.is_known(self._file, number)
            ):
                self._hasher, self._next = xxh3_128(), position
            if position == self._next:
                self._hasher.update(view[:size])
                self._next += size
                if self._next in (self._file.unit.size, (number + 1) * _BLOCK_BYTES):
                    self._contents.add(self._file, number, self._hasher.digest())
                    self._next = -1
            position += size
            view = view[size:]


def blocks_of(files: Sequence[ListedFile]) -> Sequence[tuple[ListedFile, int]]:
    """Return the blocks of ``files``, each with its file and its number, in order."""
    return [(file, number) for file in files for number in range(max(1, -(-file.unit.size // _BLOCK_BYTES)))]


def stamp_of(name: str, etag: str) -> str:
    """Return the stamp of the file ``name`` in the version ``etag``."""
    return blake2b(f"{name} {etag}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _key(file: ListedFile) -> tuple[str, str]:
    return file.path, file.unit.etag
