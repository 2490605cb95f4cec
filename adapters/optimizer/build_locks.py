"""Locks of the native code that DeepSpeed builds on first use."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torch.utils.cpp_extension import _get_build_directory, get_default_build_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_log = logging.getLogger(__name__)

LOCK = "lock"
SECONDS_OF_SILENCE = 600.0  # a running compiler writes files more often


def announce_builds(needed: Sequence[str] = (), *, seconds_of_silence: float = SECONDS_OF_SILENCE) -> None:
    """Log why the start may wait: ``needed`` extensions that are not built yet, and locks of builds.

    torch waits forever, and silently, for a lock that a killed build left in its folder (under TORCH_EXTENSIONS_DIR,
    or torch's own). So a lock is removed if no process of this machine has it open and nothing in its folder has
    changed for ``seconds_of_silence``: another machine may build in a shared folder. Each process calls this before it
    builds, so none waits for a lock that another process then removes.
    """
    for name in needed:
        # the folder of this Python and this torch: others may have built it for themselves
        if not any(Path(_get_build_directory(name, verbose=False)).glob("*.so")):
            _log.warning("DeepSpeed builds %s from source before the first step, once: that takes up to minutes", name)
    for lock in sorted(folder / LOCK for folder in _build_folders() if (folder / LOCK).exists()):
        if _has_builder(lock):
            _log.info("another process builds in %s: waiting for it", lock.parent)
        elif _seconds_unchanged(lock.parent) <= seconds_of_silence:
            _log.warning("waiting until %s is gone: if no other machine builds there, delete it", lock)
        elif not _has_builder(lock):  # checked again: another process of this run may have started to build
            lock.unlink(missing_ok=True)
            _log.warning("removed %s, which was left by a build that was killed", lock)


def _build_folders() -> Iterator[Path]:
    """Yield the folders of extensions, as ``torch.utils.cpp_extension`` lays them out."""
    own = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(own).glob("*/") if own else Path(get_default_build_root()).glob("*/*/")


def _has_builder(lock: Path) -> bool:
    """Return whether a process of this machine holds ``lock`` open, as torch does while it builds."""
    if not Path("/proc/self/fd").exists():
        return False
    return any(_is_same(opened, lock) for opened in _opened_files())


def _opened_files() -> Iterator[Path]:
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            yield from folder.iterdir()
        except OSError:  # the process has ended, or belongs to another user
            continue


def _is_same(opened: Path, lock: Path) -> bool:
    try:
        return opened.samefile(lock)
    except OSError:
        return False


def _seconds_unchanged(folder: Path) -> float:
    times = [folder.stat().st_mtime]
    for path in folder.iterdir():
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # gone since
            continue
    return time.time() - max(times)
