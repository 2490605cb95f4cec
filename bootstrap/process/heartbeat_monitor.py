"""Detects a run whose ranks have stopped sending heartbeats."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, final

import psutil

from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.adapters.shared.files.sealed_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@final
class HeartbeatMonitor:
    """Watches the heartbeats in ``folder`` from outside the run; without any for ``limit`` seconds the run is stalled.

    Processes that have sent no heartbeat yet or have ended are ignored, and time when this process is suspended does
    not count.
    """

    def __init__(self, folder: Path, limit: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._limit = limit
        self._clock = clock
        self._stamps: dict[str, int] = {}
        self._looked_at = clock()
        self._seconds = 0.0

    def reset(self) -> None:
        """Forget the heartbeats of an earlier start."""
        for path in self._folder.glob("rank*.json"):
            path.unlink(missing_ok=True)
        self._stamps, self._seconds, self._looked_at = {}, 0.0, self._clock()

    def is_stalled(self) -> bool:
        """Return whether the run is stalled; checks only after a tenth of the limit, or one second, else False."""
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
        """Yield the file name of each living process's heartbeat, and the time of its writing in ns."""
        for path in self._folder.glob("rank*.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # it has just been replaced or removed
                if psutil.pid_exists(parse_json(read_regular(path))["pid"]):
                    yield path.name, path.stat().st_mtime_ns
