"""Detects a run whose ranks have stopped sending heartbeats."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, final

import psutil

from holdfast.adapters.shared.files.regular_file import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@final
class Silence:
    """Watches the heartbeats in ``folder`` from outside; ``limit`` is how many seconds of silence are too many.

    Nobody is silent who has not beaten yet, or is gone. Time in which this process was suspended itself does not count.
    """

    def __init__(self, folder: Path, limit: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._limit = limit
        self._clock = clock
        self._stamps: dict[str, int] = {}
        self._looked_at = clock()
        self._seconds = 0.0

    def begin(self) -> None:
        """Forget the heartbeats of an earlier start."""
        for path in self._folder.glob("rank*.json"):
            path.unlink(missing_ok=True)
        self._stamps, self._seconds, self._looked_at = {}, 0.0, self._clock()

    def is_too_long(self) -> bool:
        """Look, at most ten times within the limit and once a second; return whether it has lasted longer."""
        interval = min(1.0, self._limit / 10)
        if (elapsed := self._clock() - self._looked_at) < interval:
            return False
        self._looked_at += elapsed
        stamps = dict(self._beats())
        is_silent = bool(stamps) and stamps == self._stamps
        self._stamps = stamps
        self._seconds = self._seconds + min(elapsed, 2 * interval) if is_silent else 0.0
        return self._seconds > self._limit

    def _beats(self) -> Iterator[tuple[str, int]]:
        """Yield each heartbeat of a process that is there, with the time when it was told."""
        for path in self._folder.glob("rank*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # it has just been replaced or removed
                if psutil.pid_exists(json.loads(read_regular(path))["pid"]):
                    yield path.name, path.stat().st_mtime_ns
