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
    """An object that is there: its size in bytes, and the MD5 that its store tells of it, None if it tells none.

    ``tag`` is in hex, as S3 has it: of an upload in parts the MD5 of their MD5s, a hyphen, and their number.
    """

    size: int
    tag: str | None


class ObjectStore(ABC):
    """Objects under a URL, by keys in POSIX form relative to it; none is ever changed, only created and removed.

    All raise ``StateError`` with what could not be done to which object and what to do, once it has been tried for
    long enough; no message holds a secret of the URL.
    """

    @abstractmethod
    def name(self, key: str = "") -> str:
        """Return what a person calls the object, or the whole."""

    @abstractmethod
    def find(self, folder: str = "") -> Mapping[str, ObjectInfo]:
        """Return the objects below ``folder`` by key, none where there is no such folder."""

    @abstractmethod
    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known of the object, None if it is not there."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the content of a small object, None if it is not there."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Create the object and return whether it now holds ``data``: of two that create it at once one does it."""

    @abstractmethod
    def upload(self, key: str, path: Path) -> None:
        """Create the object from a file; one that is there already is left as it is."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Delete the object, if it is there."""

    def destroy(self, key: str) -> None:
        """Delete the object, if it is there, so that its place forgets its bytes, as far as it lets one."""
        self.remove(key)

    @abstractmethod
    def chunks(self, key: str, size: int) -> Iterator[bytes]:
        """Yield the object's bytes, which are ``size``, or fewer if it is shorter than that."""

    @abstractmethod
    def clear(self, is_litter: Callable[[str], bool]) -> None:
        """Delete what is no object and whose key ``is_litter``: uploads that never ended, folders with nothing in."""
