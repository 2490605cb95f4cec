"""The operations that an archive needs of an object store."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An existing object: its size in bytes, and the MD5 that its store reports, None if it reports none.

    ``tag`` is in hex, as in S3: for a multipart upload the MD5 of the parts' MD5s, a hyphen, and the number of parts.
    """

    size: int
    tag: str | None


def count_nothing(_: int) -> None:
    """Take a number of bytes, and do nothing with it."""


class ObjectStore(ABC):
    """Objects under a URL, by keys in POSIX form relative to it; they are created and removed, never changed.

    All methods raise ``StateError`` once their retries are exhausted; its message has the operation, the object and the
    remedy, but no secrets of the URL.
    """

    @abstractmethod
    def name(self, key: str = "") -> str:
        """Return the name of the object for messages, or that of the store."""

    @abstractmethod
    def find(self, folder: str = "") -> Mapping[str, ObjectInfo]:
        """Return the objects below ``folder`` by key; none if the folder does not exist."""

    @abstractmethod
    def info(self, key: str) -> ObjectInfo | None:
        """Return the size and the tag of the object, None if it does not exist."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the content of a small object, None if it does not exist."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Create the object unless it exists, atomically; return whether it now holds ``data``."""

    @abstractmethod
    def upload(self, key: str, path: Path, count: Callable[[int], object] = count_nothing) -> None:
        """Create the object from a file; an existing object is left unchanged.

        ``count`` receives the number of bytes of each part that was sent, in any thread.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Delete the object, if it exists."""

    def destroy(self, key: str) -> None:
        """Delete the object, if it exists, and overwrite its bytes if the store allows it."""
        self.remove(key)

    @abstractmethod
    def chunks(self, key: str, size: int) -> Iterator[bytes]:
        """Yield the object's ``size`` bytes, or fewer if it is shorter."""

    @abstractmethod
    def clear(self, is_litter: Callable[[str], bool]) -> None:
        """Delete the unfinished uploads and empty folders for whose key ``is_litter`` is true."""


_PART = 32 << 20
_MOST_PARTS = 10_000
_PIECE = 1 << 20
_TAG = re.compile(r"[0-9a-f]{32}(-[0-9]+)?")


def part_bytes(size: int) -> int:
    """Return the part size in bytes of a multipart upload to S3 of a file of ``size`` bytes."""
    return max(_PART, math.ceil(size / _MOST_PARTS / _PIECE) * _PIECE)


def tag_of(info: Mapping[str, Any]) -> str | None:
    """Return the MD5 tag in a store's listing of an object, None if it has no known form."""
    if md5 := info.get("md5Hash"):  # Google
        return base64.b64decode(md5).hex()
    tag = str(info.get("ETag", "")).strip('"')
    return tag if _TAG.fullmatch(tag) else None


def fingerprint(files: FileOperations, path: Path, tag: str) -> tuple[str, str]:
    """Return the hash of the file in the manifest's form, and its tag for an upload of the kind of ``tag``.

    Both describe the same bytes, as the file is read once.
    """
    size, is_in_parts = path.stat().st_size, "-" in tag
    limit = part_bytes(size) if is_in_parts else max(1, size)
    hasher, parts, position = blake3(max_threads=blake3.AUTO), [_md5()], 0
    with io.BufferedReader(files.open_file(path), _PIECE) as file:
        while piece := file.read(_PIECE):
            if position and position % limit == 0:
                parts.append(_md5())
            parts[-1].update(piece)
            hasher.update(piece)
            position += len(piece)
    of_parts = f"{_md5(b''.join(part.digest() for part in parts)).hexdigest()}-{len(parts)}"
    return f"blake3:{hasher.hexdigest()}", of_parts if is_in_parts else parts[0].hexdigest()


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)
