"""Moves an old run folder to another name, so that a new run can use its name."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from holdfast.bootstrap.run_folder.run_lock import take_lock
from holdfast.domain.errors import StateError


def set_aside(path: Path) -> Path | None:
    """Rename the run folder ``path`` without deletion; return the new path, None if there was no such folder.

    Raises ``StateError`` if another process trains in it, if it is the current folder or a parent of it, or if it
    cannot be renamed.
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
