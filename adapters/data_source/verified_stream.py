"""Streams of a file whose bytes are the same in every pass: each block is compared with what was read of it before."""

from __future__ import annotations

import io
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override
from xxhash import xxh3_64_intdigest, xxh3_128

from holdfast.adapters.shared.files.regular_file import read_at
from holdfast.domain.errors import DataError, StateError
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from holdfast.adapters.data_source.remote_file import ListedFile
    from holdfast.domain.data.data_files import DataFile, DataFiles

LOCAL_BLOCK_BYTES = 1 << 19  # small enough for a cache; large, as each call that takes a block gives up the interpreter
REMOTE_BLOCK_BYTES = 1 << 17  # small, as one more is fetched behind each part of a file
_MOST_READINGS = 4
_UNKNOWN = 0


def block_bytes(file: ListedFile) -> int:
    """Return the size of the blocks of ``file``."""
    return LOCAL_BLOCK_BYTES if file.is_local else REMOTE_BLOCK_BYTES


@final
class BlockDigests:
    """The digests of the blocks of files that were read, 8 bytes for each; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[tuple[str, str], array[int]] = {}

    def settle(
        self, file: ListedFile, number: int, data: memoryview, again: Callable[[int], bytes], *, is_confirmed: bool
    ) -> Buffer:
        """Return the bytes of the block ``number`` of ``file``, of which ``data`` have just been read.

        If they differ from those that were read earlier, the block is read again by ``again``, which takes the most
        bytes to read: two equal readings decide. With ``is_confirmed`` a block is also read again when it is read for
        the first time. Raises ``StateError`` if the bytes are not those that were used earlier, or differ each time.
        """
        digest, known, size = _digest(data), self._known(file, number), block_bytes(file)
        if known == _UNKNOWN and not data.nbytes:
            return data
        if known == _UNKNOWN and (not is_confirmed or _is_equal(again(min(data.nbytes + 1, size)), data)):
            known = self._keep(file, number, digest)
        if digest == known:
            return data
        seen = set() if known == _UNKNOWN else {known}
        for _ in range(_MOST_READINGS):
            seen.add(digest)
            right = again(size)
            if (digest := _digest(right)) in seen:
                break
        else:
            raise _refusal(file, number, "differ each time they are read")
        if self._keep(file, number, digest) != digest:
            raise _refusal(file, number, "are not those that were read and used earlier")
        return right

    def _known(self, file: ListedFile, number: int) -> int:
        found = self._found.get(_key(file), ())
        return found[number] if number < len(found) else _UNKNOWN

    def _keep(self, file: ListedFile, number: int, digest: int) -> int:
        """Take the ``digest`` of a block, unless another is known; return the one that is."""
        with self._lock:
            found = self._found.setdefault(_key(file), array("Q"))
            if number >= len(found):
                found.extend([_UNKNOWN] * (number + 1 - len(found)))
            found[number] = found[number] or digest
            return found[number]


def _key(file: ListedFile) -> tuple[str, str]:
    return file.path, file.unit.etag


def _digest(data: Buffer) -> int:
    return xxh3_64_intdigest(data) or 1


def _is_equal(data: bytes, other: memoryview) -> bool:
    # ``==`` would compare the items of a view one by one
    return len(data) == other.nbytes and data.startswith(other)


def _refusal(file: ListedFile, number: int, how: str) -> Exception:
    name, begin = file.unit.name, number * block_bytes(file)
    if file.is_local and not file.is_unchanged():
        return DataError(f"{name} was changed while it was read: run the command again, and leave the files unchanged")
    return StateError(
        f"{name}: the bytes from {begin:,} on {how}, while its time and size stayed the same: leave the files "
        "unchanged, check disk and memory, and run the command again"
    )


@final
class VerifiedStream(io.RawIOBase):
    """The bytes of ``raw``, a stream of ``file`` as stored, read in blocks that ``digests`` have settled.

    ``again`` reads the bytes from a position on once more, at most as many as are asked for; ``is_confirmed`` is as in
    ``BlockDigests.settle``. ``tap`` gets each position and the bytes there.
    """

    def __init__(
        self,
        raw: Any,
        file: ListedFile,
        digests: BlockDigests,
        again: Callable[[int, int], bytes],
        *,
        is_confirmed: bool,
        tap: Callable[[int, Buffer], object] | None = None,
    ) -> None:
        self._raw = raw
        self._file = file
        self._block_bytes = block_bytes(file)
        self._digests = digests
        self._again = again
        self._is_confirmed = is_confirmed
        self._tap = tap
        self._position = 0
        self._behind = 0  # the position of ``raw``
        self._end = -1  # of the file, once it was met
        self._held: tuple[int, memoryview] = (-1, memoryview(b""))

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
        if whence == io.SEEK_END:
            self._position = self._behind = self._raw.seek(offset, whence)
        else:
            self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        if self._position == self._end:
            return 0
        target = memoryview(buffer).cast("B")
        number, offset = divmod(self._position, self._block_bytes)
        if self._held[0] != number and not offset and len(target) >= self._block_bytes:
            size = self._read_block(number, target[: self._block_bytes])
        else:
            if self._held[0] != number:
                block = memoryview(bytearray(self._block_bytes))
                self._held = number, block[: self._read_block(number, block)]
            part = self._held[1][offset : offset + len(target)]
            size = len(part)
            target[:size] = part
        self._position += size
        return size

    @override
    def close(self) -> None:
        self._raw.close()
        super().close()

    def start(self, position: int) -> None:
        """Start fetching the block of ``position`` and what follows, from a remote file, without waiting."""
        self._raw.start(position // self._block_bytes * self._block_bytes)

    def _read_block(self, number: int, block: memoryview) -> int:
        begin, size = number * self._block_bytes, 0
        if self._behind != begin:
            self._raw.seek(begin)
        while size < self._block_bytes and (count := self._raw.readinto(block[size:])):
            size += count
        self._behind = begin + size
        again = partial(self._again, begin)
        found = self._digests.settle(self._file, number, block[:size], again, is_confirmed=self._is_confirmed)
        right = memoryview(found)
        size = right.nbytes
        block[:size] = right
        self._end = begin + size if size < self._block_bytes else self._end
        if self._tap is not None:
            self._tap(begin, block[:size])
        return size


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
