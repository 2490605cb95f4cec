"""Moving an old run out of the way of a new one."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from holdfast.bootstrap.run_folder.run_lock import take_lock
from holdfast.domain.errors import StateError


def set_aside(path: Path) -> Path | None:
    """Move the run folder ``path`` out of the way, never deleting it; return where it went, None if there was none.

    Raises ``StateError`` if another process trains in it, or if it is the current folder or above it.
    """
    if not path.exists():
        return None
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        msg = f"{path} cannot be set aside: this command was started inside it; start it from another folder"
        raise StateError(msg)
    lock = take_lock(path)
    try:
        return _move_away(path)
    except OSError as error:
        msg = f"{path} cannot be set aside: {error.strerror}"
        raise StateError(msg) from error
    finally:
        os.close(lock)


def _move_away(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    target = path.with_name(f"{path.name}.{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{stamp}-{number}")
    path.rename(target)
    return target
