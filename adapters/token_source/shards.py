"""Values shared by all kinds of token files: read options, and the shards of a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations, bytes_of
from holdfast.adapters.shared.token_store.token_folder import MARKER, TokenFolder
from holdfast.adapters.shared.token_store.token_shards import StoredShards
from holdfast.domain.data.data_files import LATEST_RULES
from holdfast.domain.errors import DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    TokensOpener = Callable[[], Tokens]
    Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A local file; ``name`` is its name in messages; ``etag`` and the ``stamp`` of the local copy change with it.

    ``place`` is the beginning of the path in the settings: a folder, that of a glob, or the file itself.
    """

    name: str
    path: Path
    etag: str
    stamp: str
    place: str


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading: the end of a document, the vocabulary, the type of raw ids, and the size of a shard."""

    end_of_text: int
    vocabulary_size: int
    dtype: str
    column: str
    shard_tokens: int
    rules: int = LATEST_RULES

    def to_key(self) -> str:
        """Return the text that names folders of conversions; if its form changed, files would be converted again."""
        return (
            f"Reading(end_of_text={self.end_of_text!r}, vocabulary_size={self.vocabulary_size!r}, "
            f"dtype={self.dtype!r}, column={self.column!r}, shard_tokens={self.shard_tokens!r})"
        )


@dataclass(frozen=True, slots=True)
class FileShard:
    """A shard and a function that opens it; ``file`` contains it, and ``place`` is as in ``TokenFile``."""

    shard: TokenShard
    open: TokensOpener
    file: str
    place: str


def stamp_of(path: Path) -> str:
    """Return a text that changes when the file is written to."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def shard_name(file: TokenFile, number: int) -> str:
    """Return the name of a file's shard; those of one file sort by number."""
    return f"{file.name}#{number:06d}"


def fingerprint_of(*parts: object) -> str:
    """Return a hash of ``parts``."""
    return blake3(repr(parts).encode("utf-8", "surrogatepass")).hexdigest(length=16)


_REMEDY = "fill that cache again, or leave the path out"


def is_token_cache(path: Path) -> bool:
    """Return whether ``path`` is a token cache, or the folder of one dataset in it."""
    return (path / MARKER).is_file() or (path.is_dir() and (path.parent / MARKER).is_file())


def cached_shards(path: Path, options: ReadOptions, *, verify: bool, max_open: int) -> Iterator[FileShard]:
    """Yield the shards below the token cache ``path``; none of them is ever deleted."""
    place = _only_dataset(path) if (path / MARKER).is_file() else path
    folder = TokenFolder(place.parent, TokenFileOperations())
    stored = StoredShards(folder, place, verify=verify, max_open=max_open, remedy=_REMEDY, error=DataError)
    for name, manifest in stored.scan().items():
        shard = manifest.shard
        named = TokenShard(f"{place}/{name}", shard.num_tokens, shard.num_documents, shard.fingerprint)
        yield FileShard(
            named, partial(_open, stored, shard, options.vocabulary_size if verify else None), named.name, str(place)
        )


def _only_dataset(path: Path) -> Path:
    datasets = sorted(place for place in path.iterdir() if place.is_dir() and not place.name.startswith("."))
    if len(datasets) != 1:
        names = ", ".join(place.name for place in datasets) or "none"
        msg = f"{path} is a token cache of {len(datasets)} datasets ({names}): name the folder of one of them"
        raise DataError(msg)
    return datasets[0]


def _open(stored: StoredShards, shard: TokenShard, vocabulary_size: int | None) -> Tokens:
    tokens = stored.open(shard)
    if vocabulary_size is not None:
        check_ids(
            tokens.ids[:],
            vocabulary_size,
            lambda number: f"the id at position {number} of the shard {shard.name!r} in {stored.place}",
        )
    return tokens


@final
class DocumentScanner:
    """Finds documents in ids that are fed piece by piece; a document ends after ``end_of_text`` or at a given end.

    A document's hash is the BLAKE2b of its ids as little-endian uint32, without end-of-text; its 8 bytes are read as a
    uint64. The hash therefore does not depend on the type of the stored ids or on whether the file has the end-of-text.
    """

    def __init__(self, end_of_text: int) -> None:
        self._end_of_text = end_of_text
        self._num_tokens = 0
        self._last_end = 0
        self._ends: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._hashes: list[bytes] = []
        self._document = blake2b(digest_size=8)
        self._content = blake3()

    def feed(self, ids: NDArray[np.integer[Any]], ends: NDArray[np.int64] | None = None) -> None:
        """Add the next ids, of any integer dtype, (num_tokens,), all from 0 to 2**32 - 1.

        ``ends`` are those of their documents; None finds them.
        """
        wide = ids.astype("<u4", copy=False)
        data = bytes_of(wide)
        is_end = wide == self._end_of_text
        ends = np.flatnonzero(is_end) + 1 if ends is None else ends
        begin = 0
        for end, is_ended in zip(ends.tolist(), is_end[ends - 1].tolist(), strict=True):
            self._document.update(data[4 * begin : 4 * end - 4 * is_ended])
            self._close()
            begin = end
        self._document.update(data[4 * begin :])
        self._content.update(data)
        self._ends.append(ends + self._num_tokens)
        self._num_tokens += len(wide)
        if len(ends):
            self._last_end = int(self._ends[-1][-1])

    def finish(self) -> Arrays:
        """Return ``offsets`` int64, ``hashes`` uint64 and ``content``, a hash of all ids, uint8 (16,)."""
        ends = [*self._ends]
        if self._last_end < self._num_tokens:
            self._close()
            ends.append(np.array([self._num_tokens], np.int64))
        return {
            "offsets": np.concatenate(ends),
            "hashes": np.frombuffer(b"".join(self._hashes), "<u8"),
            "content": np.frombuffer(self._content.digest(length=16), np.uint8),
        }

    def _close(self) -> None:
        self._hashes.append(self._document.digest())
        self._document = blake2b(digest_size=8)


def check_ids(ids: NDArray[np.integer[Any]], vocabulary_size: int, place: Callable[[int], str]) -> None:
    """Raise ``DataError`` unless all ids are in ``[0, vocabulary_size)``.

    ``ids`` are of any integer dtype, (num_tokens,); ``place(n)`` names the n-th id, counted from 0.
    """
    if not ids.size or (int(ids.max()) < vocabulary_size and int(ids.min()) >= 0):
        return
    first = int(np.argmax((ids >= vocabulary_size) | (ids < 0)))
    msg = (
        f"{place(first)} is {int(ids[first])}, and the vocabulary has the ids 0 to {vocabulary_size - 1}: "
        f"choose the tokenizer that made the file, and the type it was written with (data.dtype)"
    )
    raise DataError(msg)


def narrowest(vocabulary_size: int) -> np.dtype[Any]:
    """Return the type that holds all ids: uint16 or uint32."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)
