"""Operations on a file system that may fail or be interrupted, in one place so that tests can stop at each of them."""

from __future__ import annotations

import errno
import glob
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.adapters.shared.files.regular_file import check_regular, regular
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

_SYNCED_AT_ONCE = 64 << 20  # bytes

_REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EBADF: "open it for writing",
    errno.EDQUOT: "free some space there or raise the quota",
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EROFS: "mount it writable",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "remove the link that leads to itself",
    errno.EXDEV: "keep the whole run folder on one file system",
    errno.EMFILE: "raise the limit of open files",
}


def explain(error: OSError) -> str:
    """Return the system's reason and a remedy, as the end of a sentence."""
    remedy = _REMEDIES.get(error.errno or 0, "check the disk")
    return f"{(error.strerror or str(error)).lower()}: {remedy}"


def temporary_folder() -> Path:
    """Return the folder for temporary files; raises ``ConfigurationError`` if there is none that can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigurationError(without_temporary_folder(error)) from error


def without_temporary_folder(error: FileNotFoundError) -> str:
    """Return a sentence on the ``error`` of Python that no folder for temporary files can be written."""
    tried = str(error).rpartition("[")[2].rstrip("]").replace("'", "")
    return (
        f"there is no folder for temporary files that can be written (tried {tried}): set the environment variable "
        "TMPDIR to one that exists"
    )


_BLOCK = 1 << 20


class FileOperations:
    """The operations of a durable adapter on a file system; at each call a crash or a full disk may occur.

    All raise ``OSError`` if they fail. Only ``sync_folder`` follows a link at the end of its path. Nothing is durable
    before ``sync_file`` (bytes) and ``sync_folder`` (names). A subclass may count, refuse or interrupt calls.
    """

    def make_folder(self, path: Path) -> None:
        """Create the folder, which does not exist."""
        path.mkdir()

    def write_file(self, path: Path, data: bytes) -> None:
        """Create the file, which does not exist, with ``data``."""
        with path.open("xb") as file:
            file.write(data)

    def write_chunks(self, path: Path, chunks: Iterable[Buffer]) -> None:
        """Create the file, which does not exist, with ``chunks`` one after another.

        Written bytes are synced while the rest is written, so the sync that must follow has little to do.
        """
        with path.open("xb", buffering=0) as file, ThreadPoolExecutor(1, "sync") as thread:
            written, syncing = 0, None
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    count = file.write(rest)
                    rest, written = rest[count:], written + count
                if written >= _SYNCED_AT_ONCE and (syncing is None or syncing.done()):
                    if syncing is not None:
                        syncing.result()  # an error is reported only here
                    written, syncing = 0, thread.submit(os.fdatasync, file.fileno())
            if syncing is not None:
                syncing.result()

    def overwrite_file(self, path: Path) -> None:
        """Overwrite each byte of the file with zero, in place."""
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            rest = os.fstat(descriptor).st_size
            while rest:
                rest -= os.write(descriptor, bytes(min(rest, _BLOCK)))
        finally:
            os.close(descriptor)

    def sync_file(self, path: Path) -> None:
        """Make the bytes of the file durable."""
        self._sync(path, os.O_RDONLY | os.O_NOFOLLOW)

    def sync_folder(self, path: Path) -> None:
        """Make the names in the folder durable."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Move ``source`` to ``target`` on the same file system, atomically; a file ``target`` is replaced."""
        source.rename(target)

    def remove_file(self, path: Path) -> None:
        """Delete a file or a link."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Delete an empty folder."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        """Delete the file, link or folder ``path`` with its content, through the operations above."""
        if not path.is_symlink() and path.is_dir():
            for child in sorted(path.iterdir()):
                self.remove_tree(child)
            self.remove_folder(path)
        else:
            self.remove_file(path)

    def open_file(self, path: Path) -> FileIO:
        """Open the file for unbuffered reading, without waiting; raises ``OSError`` for a link, a pipe or a device."""
        return FileIO(path, "rb", opener=_without_links)

    def _sync(self, path: Path, flags: int) -> None:
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def create_file(files: FileOperations, path: Path, data: bytes) -> None:
    """Create the file ``path``, which does not exist, with ``data``; all is durable but its name."""
    files.write_file(path, data)
    files.sync_file(path)


def write_whole(files: FileOperations, path: Path, data: bytes) -> None:
    """Write ``data`` to the file ``path``, which may exist, all of it or nothing; all is durable but its name."""
    draft = path.with_name(f"{path.name}.{uuid4().hex}")  # an earlier attempt may have failed half-way
    create_file(files, draft, data)
    files.rename(draft, path)


def destroy_file(files: FileOperations, path: Path) -> None:
    """Overwrite the file and delete it, durably; the disk may still hold older copies of its bytes."""
    files.overwrite_file(path)
    files.sync_file(path)
    files.remove_file(path)
    files.sync_folder(path.parent)


def _without_links(path: str, flags: int) -> int:
    check_regular(path)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


_ABANDONED_SECONDS = 3600.0
"""Age from which a draft is of a process that was killed: no write of one file takes that long."""


def replace_file(path: Path, content: bytes, *, is_shared: bool = False, is_durable: bool = True) -> None:
    """Write ``content`` to the file ``path``, which may exist; if it raises ``OSError``, ``path`` is unchanged.

    The new contents are durable at return, after a power cut too. Without ``is_durable`` they survive the end of this
    process, but no power cut: for heartbeats, which must not wait for the disk. The draft is ``.NAME.new`` in the same
    folder; with ``is_shared``, for files that several processes may write at once, its name is unique, and old drafts
    of killed processes for ``path`` are deleted.
    """
    if is_shared:
        _delete_abandoned(path)
    draft = path.with_name(f".{path.name}.{uuid4().hex}.new" if is_shared else f".{path.name}.new")
    try:
        with open(draft, "wb", opener=regular) as file:
            file.write(content)
        if is_durable:
            move_into_place(draft, path)
        else:
            draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def move_into_place(draft: Path, path: Path) -> None:
    """Replace ``path`` by the complete file ``draft`` of the same folder, durably; raises ``OSError``."""
    files = FileOperations()
    files.sync_file(draft)
    files.rename(draft, path)
    files.sync_folder(path.parent.resolve())


def _delete_abandoned(path: Path) -> None:
    latest = time.time() - _ABANDONED_SECONDS
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with suppress(OSError):
            if draft.lstat().st_mtime < latest:
                draft.unlink()
