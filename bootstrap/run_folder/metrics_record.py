"""The metrics in a run folder, and the steps up to which the trackers have them."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@final
class MetricsRecord:
    """``metrics.jsonl`` and ``trackers.json`` of the run folder ``root``; a ``MetricsHistory``."""

    def __init__(self, root: Path) -> None:
        self._layout = RunLayout(root)
        self._lock = threading.Lock()  # each tracker has a thread

    def between(self, after: int, last: int) -> Iterator[tuple[int, Mapping[str, float]]]:
        """Yield the metrics of the steps greater than ``after``, up to ``last``; step 0 if ``after`` is 0.

        Raises ``StateError`` if the file cannot be opened.
        """
        for step, metrics in read_metrics(self._layout.metrics):
            if after < step <= last or step == after == 0:
                yield step, metrics

    def sent(self, tracker: str) -> int:
        """Return the step up to which ``tracker`` has all metrics, 0 if that is unknown."""
        return self._read().get(tracker, 0)

    def note_sent(self, tracker: str, step: int) -> None:
        """Store that ``tracker`` has all metrics up to ``step``; raises ``StateError`` if the disk refuses it."""
        try:
            with self._lock:
                sent = json.dumps(self._read() | {tracker: step})
                replace_file(self._layout.trackers, sent.encode(), is_durable=False)
        except OSError as error:
            msg = f"{self._layout.trackers} cannot be written, {explain(error)}"
            raise StateError(msg) from error

    def _read(self) -> dict[str, int]:
        try:
            content = parse_json(read_regular(self._layout.trackers))
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {name: step for name, step in content.items() if isinstance(step, int) and step >= 0}


def read_metrics(path: Path) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yield the step and the metrics of each line of a ``metrics.jsonl``, in their order; other lines are skipped.

    Raises ``StateError`` if the file cannot be opened.
    """
    for record in JsonLines(path).read():
        if type(step := record.get("step")) is int and step >= 0:
            yield step, metrics_of(record)


def metrics_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a line of ``metrics.jsonl`` under the names that they were recorded with."""
    return {
        name[:-1] if name.rstrip("_") == "step" else name: float(value)
        for name, value in record.items()
        if name != "step" and (isinstance(value, int | float) or value in _NOT_FINITE)
    }
