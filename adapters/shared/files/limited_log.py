"""The limit on the length of a log that a child process writes."""

from __future__ import annotations

import os

from holdfast.adapters.shared.files.regular_file import read_at

MOST_BYTES = 4 << 20
_KEPT_BYTES = 1 << 20
_CUT = b"[earlier lines were removed]\n"


def limit_log(descriptor: int, most: int | None = None) -> None:
    """Remove the earlier lines of a log of more than ``most`` bytes, by default 4 MiB, so that it cannot fill the disk.

    ``descriptor`` is open for reading, and like that of the child for appending (``O_APPEND``): the child then goes on
    behind the lines that are left. Lines that it writes at this very moment may be lost. Raises ``OSError``.
    """
    most = MOST_BYTES if most is None else most
    size = os.fstat(descriptor).st_size
    if size <= most:
        return
    kept = read_at(descriptor, size - min(most, _KEPT_BYTES), min(most, _KEPT_BYTES))
    os.ftruncate(descriptor, 0)
    os.write(descriptor, _CUT + kept[kept.find(b"\n") + 1 :])
