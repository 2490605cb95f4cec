"""Opens regular files only, so that a pipe or a device in a run folder made elsewhere cannot block the process."""

from __future__ import annotations

import errno
import json
import os
import stat
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRIES = 3
_BLOCK = 1 << 16
_REASON = "it is a pipe, a device, a socket or a folder in place of a file: remove it"
_DIFFERENT = "it returns different bytes each time it is read"
_LINK = "it is a symbolic link in place of a file, which could lead anywhere: put the file itself there"


class IrregularFileError(OSError):
    """A path that should be a regular file is not one."""


def open_regular(path: Path) -> BinaryIO:
    """Open the file for reading at once; raises ``OSError``, which is ``IrregularFileError`` for a pipe or a device."""
    return open(path, "rb", opener=regular)


def read_regular(path: Path) -> bytes:
    """Return the bytes of the file; raises the errors of ``open_regular``."""
    with open_regular(path) as file:
        return file.read()


def read_alike(path: Path) -> bytes:
    """Return the bytes of a small file that has no stored hash, once two readings agree.

    Raises ``OSError`` if they never agree or the file cannot be read.
    """
    for _ in range(_TRIES):
        first, second = read_regular(path), read_regular(path)
        if first == second:  # else it was replaced meanwhile, or a reading was wrong
            return first
    raise OSError(errno.EIO, _DIFFERENT, str(path))


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Return ``size`` bytes from ``offset`` on, fewer at the end of the file only. Raises ``OSError``."""
    data = os.pread(descriptor, max(size, 0), offset)
    if len(data) in (0, size):
        return data
    parts = [data]
    while (left := size - sum(map(len, parts))) and (more := os.pread(descriptor, left, offset + size - left)):
        parts.append(more)
    return b"".join(parts)


def read_at_alike(descriptor: int, offset: int, size: int) -> bytes:
    """Return what ``read_at`` returns, once two readings agree; raises ``OSError`` if they never do."""
    for _ in range(_TRIES):
        first, second = read_at(descriptor, offset, size), read_at(descriptor, offset, size)
        if first == second:
            return first
    raise OSError(errno.EIO, _DIFFERENT)


def end_of_lines(descriptor: int, size: int) -> int:
    """Return where the last complete line in the first ``size`` bytes of a file ends, 0 without one.

    What lies behind it may be removed, so each block is read until two readings agree; raises ``OSError`` if they never
    do.
    """
    end = size
    while end:
        start = max(0, end - _BLOCK)
        if (place := read_at_alike(descriptor, start, end - start).rfind(b"\n")) >= 0:
            return start + place + 1
        end = start
    return 0


def regular(path: str, flags: int) -> int:
    """Return a descriptor as ``os.open`` does, to be the ``opener`` of ``open``.

    Raises ``IrregularFileError`` if ``path`` is not a regular file, or is to be written and is a symbolic link, which
    may lead out of the run folder.
    """
    check_regular(path)  # a device is better not opened at all
    if flags & (os.O_WRONLY | os.O_RDWR):
        if Path(path).is_symlink():
            raise IrregularFileError(errno.EINVAL, _LINK, path)
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IrregularFileError(errno.EINVAL, _REASON, path)
    return descriptor


def check_regular(path: str | Path) -> None:
    """Raise ``IrregularFileError`` if ``path`` exists and is not a regular file."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116  a path or a text
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise IrregularFileError(errno.EINVAL, _REASON, str(path))


HASH = "hash"
"""The name of the member that holds the hash."""
_DEEPEST = 100  # lists and objects within each other; none that Holdfast writes has as many
_TOO_DEEP = "its values are nested too deeply"


def parse_json(data: str | bytes) -> Any:
    """Return the value in ``data``; raises ``ValueError`` for anything else, and for one that is nested too deeply."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [value]
    for _ in range(_DEEPEST):
        within = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        if not (level := [child for children in within for child in children]):
            return value
    raise ValueError(_TOO_DEEP)


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record`` with the hash of its members, in place of an earlier one."""
    members = {name: value for name, value in record.items() if name != HASH}
    return members | {HASH: _hash_of(json.loads(json.dumps(members)))}


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``record`` without its hash; one that has none was written by an earlier version.

    Raises ``ValueError`` if the members are not those that were sealed.
    """
    members = dict(record)
    if HASH in members and members.pop(HASH) != _hash_of(members):
        msg = "it is not what was written, as its hash differs"
        raise ValueError(msg)
    return members


def _hash_of(members: Mapping[str, Any]) -> str:
    return blake2b(json.dumps(members, sort_keys=True).encode(), digest_size=16).hexdigest()
