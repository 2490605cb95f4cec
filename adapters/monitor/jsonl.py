"""Writes figures to a file, one JSON object per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@final
class JsonlMonitor(Monitor):
    """Writes each record as ``{"step": 100, "loss": 3.41, ...}`` into a file that can be read while it grows.

    A record is passed to the operating system before ``record`` returns, so it survives ``kill -9``; nothing is
    buffered, so ``record`` waits for a slow disk. NaN and the infinities are the strings "NaN", "Infinity" and
    "-Infinity". A metric named ``step`` is written as ``step_`` (and ``step_`` as ``step__``). ``rewind`` does not
    change the earlier lines, and leaves the file complete if it is interrupted.
    Raises ``StateError`` if the disk refuses a record.
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)
        self._closed = False

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self._lines.append({"step": step} | {_key(name): _number(value) for name, value in metrics.items()})

    @override
    def rewind(self, step: int) -> None:
        self._lines.cut(lambda record: _stays(record, step))

    @override
    def close(self) -> None:
        self._closed = True
        self._lines.close()


def _key(name: str) -> str:
    return f"{name}_" if name.rstrip("_") == "step" else name


def _number(value: float) -> float:
    return value if isinstance(value, int) else float(value)


def _stays(record: Mapping[str, Any], step: int) -> bool:
    recorded = record.get("step")
    return not isinstance(recorded, int) or (step > 0 and recorded <= step)
