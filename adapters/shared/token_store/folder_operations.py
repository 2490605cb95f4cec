"""File operations, names and errors that are specific to stored tokens."""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.files.file_operations import FileOperations, explain
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_READABLE = 48
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class TokenFileOperations(FileOperations):
    """File operations that can also write a file piece by piece."""

    def append_file(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        """Add ``data`` to the end of the file, which exists."""
        rest = memoryview(data)
        with path.open("r+b", buffering=0) as file:
            file.seek(0, 2)
            while rest:
                rest = rest[file.write(rest) :]


@final
class CorruptTokensError(Exception):
    """A file differs from what was written; the message is a clause with the file and the difference."""


def safe_name(text: str) -> str:
    """Return a unique name for a file or folder: a hash of ``text`` and its readable end."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[-_READABLE:].strip(".-")
    digest = blake3(text.encode("utf-8", "surrogatepass")).hexdigest(length=12)
    return f"{digest}-{readable}" if readable else digest


def plain_name(text: str) -> str:
    """Return ``text`` if it is a valid name on any file system, else its ``safe_name``."""
    return text if _PLAIN.fullmatch(text) else safe_name(text)


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of ``array``, of any shape and dtype, in row-major order; not copied if contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@contextmanager
def storing(what: str, where: Path) -> Iterator[None]:
    """Raise ``StateError`` in place of an ``OSError``: ``what`` could not be stored in ``where``, and the remedy."""
    try:
        yield
    except OSError as error:
        other = " or choose another folder with run.cache_dir" if error.errno in _NOT_WRITABLE else ""
        msg = f"{what} cannot be stored in {where}, {explain(error)}{other}; complete data there is unchanged"
        raise StateError(msg) from error


@contextmanager
def reading(what: str, where: Path) -> Iterator[None]:
    """Raise ``StateError`` in place of an ``OSError``: ``what`` could not be read in ``where``, and the remedy."""
    try:
        yield
    except OSError as error:
        msg = f"{what} cannot be read in {where}, {explain(error)}"
        raise StateError(msg) from error
