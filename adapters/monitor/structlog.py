"""Writes figures to the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import structlog
from typing_extensions import override

from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Mapping


@final
class StructlogMonitor(Monitor):
    """Logs each record as one event ``metrics`` of level info, through structlog as the process has configured it.

    The figures are together under ``metrics``, so no name can collide with the log's own keys. ``rewind`` does nothing,
    so a resumed run logs some steps again. A call takes as long as the handlers of the log take.
    """

    def __init__(self, logger_name: str = "holdfast.metrics") -> None:
        self._log = structlog.get_logger(logger_name)
        self._closed = False

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self._log.info("metrics", step=step, metrics=dict(metrics))

    @override
    def rewind(self, step: int) -> None:
        pass

    @override
    def close(self) -> None:
        self._closed = True
