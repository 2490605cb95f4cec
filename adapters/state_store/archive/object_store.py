"""The operations that an archive needs of an object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


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
