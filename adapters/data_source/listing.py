"""Lists the files that a path, folder or glob names on any file system of fsspec."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fsspec.core import url_to_fs
from fsspec.utils import glob_translate

from holdfast.adapters.data_source.listed_file import ListedFile, local_etag
from holdfast.adapters.data_source.remote_file_system import RemoteFileSystem
from holdfast.adapters.shared.network.hub_names import nearest_name
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.urls import describe, without_secrets
from holdfast.ports.data_source import Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsspec import AbstractFileSystem

    from holdfast.adapters.data_source.file_access import FileAccess

_MAGIC = re.compile(r"[*?\[]")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
}
# the names of file systems for the version of a file, the most reliable first
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "checksum", "mtime", "LastModified", "last_modified", "created")


def list_files(url: str, exclude: Sequence[str], access: FileAccess) -> Iterator[ListedFile]:
    """Yield the files that ``url`` names: itself, those below a folder, or those that a glob matches.

    Hidden files and folders (``.git``) are left out unless a glob spells the dot, and so are those that ``exclude``
    matches: a pattern without a slash matches names of files and folders below ``url``, one with a slash the path below
    ``url``. Links to folders are followed, and links to no file are marked. Transient errors are retried. Raises
    ``DataError`` if ``url`` cannot be listed, ``ConfigurationError`` if a package for its scheme is missing.
    """
    file_system, root = _open(url)
    place = RemoteFileSystem(file_system, access)
    with _listing(url):
        file_system.invalidate_cache()  # some cache listings without a time limit
        info = place.info(root)
        if not info and not _MAGIC.search(root):
            _raise_missing(url)
        if info.get("type") == "file":
            yield _stored(place, root, info, base=root, is_chosen=True)
            return
        is_folder = info.get("type") == "directory"
        search = _Search(place, root, root if is_folder else _fixed_part(root), is_folder, exclude)
        for path, info in search.hits():
            yield _stored(place, path, info, base=search.base, is_chosen=not is_folder)


def reach(url: str, access: FileAccess) -> None:
    """Ask whether there is what ``url`` names, of a glob the folder above it, without listing what is in it.

    Raises ``DataError`` if there is not or the place does not answer, and ``ConfigurationError`` as ``list_files``.
    """
    file_system, root = _open(url)
    with _listing(url):
        file_system.invalidate_cache()
        asked = _fixed_part(root) if _MAGIC.search(root) else root
        if not RemoteFileSystem(file_system, access).info(asked or "/"):
            _raise_missing(url)


@contextmanager
def _listing(url: str) -> Iterator[None]:
    """Turn the errors of a file system within the block into ``DataError``."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # each file system has its own errors
        msg = f"{without_secrets(url)} cannot be listed ({describe(error)}): check data.path and your access to it"
        raise DataError(msg) from error


@dataclass(frozen=True, slots=True)
class _Search:
    place: RemoteFileSystem
    root: str
    base: str
    is_folder: bool
    exclude: Sequence[str]

    def hits(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.is_folder and not _MAGIC.search(self.root):
            return
        matches = (lambda _: True) if self.is_folder else re.compile(glob_translate(self.root)).match
        depth = None if self.is_folder or "**" in self.root else self.root.removeprefix(self.base).count("/")
        if not self.place.is_local:
            found = self.place.files(self.base, depth)
            yield from ((path, info) for path, info in found if matches(path) and not self._skips(path))
        elif Path(self.base or "/").is_dir():
            yield from ((path, {}) for path in self._walk(self.base, depth) if matches(path))

    def _walk(self, folder: str, depth: int | None, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
        status = Path(folder or "/").stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above or depth == 0:  # a link may lead back to a folder above it
            return
        with os.scandir(folder or "/") as entries:
            found = [
                (f"{folder}/{entry.name}", entry.is_dir(), entry.is_file() or entry.is_symlink()) for entry in entries
            ]
        for path, is_folder, is_file in found:
            if self._skips(path):
                continue
            if is_folder:
                yield from self._walk(path, None if depth is None else depth - 1, (*above, identity))
            elif is_file:
                yield path

    def _skips(self, path: str) -> bool:
        relative = path.removeprefix(self.base).lstrip("/")
        names = relative.split("/")
        spells_the_dot = "/." in self.root.removeprefix(self.base)
        if not spells_the_dot and any(name.startswith(".") for name in names):
            return True
        return any(
            fnmatchcase(relative, pattern) if "/" in pattern else any(fnmatchcase(name, pattern) for name in names)
            for pattern in self.exclude
        )


def _raise_missing(url: str) -> NoReturn:
    shown = without_secrets(url)
    if "," in url:
        advice = f"several paths are written as a list, data.path=[{shown}]"
    else:
        nearest = None if "://" in url else nearest_name(Path(url))
        advice = f"did you mean {nearest}?" if nearest else "check data.path"
    msg = f"there is no file or folder {shown}: {advice}"
    raise DataError(msg)


def _open(url: str) -> tuple[AbstractFileSystem, str]:
    scheme = url.partition("://")[0]
    try:
        file_system, root = url_to_fs(url)
    except ImportError as error:
        install = f"run: pip install {_PACKAGES[scheme]}" if scheme in _PACKAGES else describe(error)
        msg = f"{without_secrets(url)} needs a package that is not installed: {install}"
        raise ConfigurationError(msg) from error
    except Exception as error:  # each file system has its own errors
        msg = f"{without_secrets(url)} cannot be opened ({describe(error)}): check data.path"
        raise DataError(msg) from error
    return file_system, root.rstrip("/") or root


def _fixed_part(root: str) -> str:
    magic = _MAGIC.search(root)
    return root[: magic.start() if magic else None].rpartition("/")[0]


def _stored(place: RemoteFileSystem, path: str, info: dict[str, Any], *, base: str, is_chosen: bool) -> ListedFile:
    file_system = place.file_system
    if place.is_local:
        if path != base and not Path(path).is_file():
            return ListedFile(Unit(path, 0, ""), path, file_system, None, is_chosen, base, is_dangling=True)
        unit = Unit(path, Path(path).stat().st_size, local_etag(path))
        return ListedFile(unit, path, file_system, None, is_chosen, base)
    name, base = (without_secrets(file_system.unstrip_protocol(each)) for each in (path, base))
    if info.get("size") is None:
        info = place.info(path)  # HTTP lists a page of links, which has no sizes
    if info.get("size") is None:
        msg = f"{name} cannot be read in ranges, as its server reports no size: copy it elsewhere"
        raise DataError(msg)
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    unit = Unit(name, int(info["size"]), f"{version}-{info['size']}")
    return ListedFile(unit, path, file_system, info.get("ETag"), is_chosen, base)
