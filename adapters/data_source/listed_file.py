"""One file of a data source, on this machine or a remote one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsspec.implementations.local import LocalFileSystem

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from holdfast.ports.data_source import Unit


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that was found at a path.

    ``unit`` is the unit of the whole file, ``path`` its path in its file system, ``etag`` its version there, if HTTP
    has it too; ``is_chosen`` is false for one that was merely found in a folder. ``place`` is the common beginning of
    the names of all units of the path: the folder, the folder of a glob, or the file itself. ``is_dangling`` marks a
    link to no file.
    """

    unit: Unit
    path: str
    file_system: AbstractFileSystem
    etag: str | None
    is_chosen: bool
    place: str
    is_dangling: bool = False

    @property
    def below(self) -> str:
        """Return the path below ``place``, with its slash; empty for the file itself."""
        return self.unit.name.removeprefix(self.place)

    @property
    def is_local(self) -> bool:
        """Return whether the file lies on this machine's disk."""
        return isinstance(self.file_system, LocalFileSystem)

    def is_unchanged(self) -> bool:
        """Return whether a local file is unchanged since it was listed."""
        return self.unit.etag == local_etag(self.path)


def local_etag(path: str) -> str:
    """Return the modification time and size of the file at ``path``."""
    status = Path(path).stat()
    return f"{status.st_mtime_ns}-{status.st_size}"
