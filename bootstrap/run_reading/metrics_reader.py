"""The reader of ``metrics.jsonl`` while a run writes it, and after a roll-back has cut it."""

from __future__ import annotations

from itertools import chain, groupby
from operator import methodcaller
from typing import TYPE_CHECKING, Any, final

import numpy as np
import orjson

from holdfast.bootstrap.run_folder.metrics_record import metrics_of
from holdfast.bootstrap.run_reading.growing_file import GrowingFile, records_in
from holdfast.bootstrap.run_reading.metric_table import MetricTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Group = tuple[tuple[str, ...], list[dict[str, Any]]]

_CHUNK = 2 << 20
_LONGEST_LINE = 1 << 14
_SAMPLES = 1500
_LARGE = 16 << 20
_MOST_STEPS = 1 << 62


@final
class MetricsReader:
    """The metrics in a file: ``steps`` has the records with a loss, ``evaluations`` has all others.

    ``generation`` grows whenever rows that were there are replaced, and whenever an evaluation of an earlier step
    arrives, such as that of a checkpoint by suites. While a large file is read for the first time,
    ``overview`` has a sample of its steps, evenly over the file, and is None otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)
        self.steps = MetricTable()
        self.evaluations = MetricTable()
        self.overview: MetricTable | None = None
        self.generation = 0
        self._num_evaluations: list[int] = []  # in the file before each block of steps

    @property
    def share(self) -> float:
        """Return the share of the file that was read."""
        size = self._file.size
        return 1.0 if size <= self._file.offset else self._file.offset / size

    def poll(self, most: int = 4 * _CHUNK) -> bool:
        """Read about ``most`` bytes of new lines; return whether any row was added or removed."""
        has_changed, read = False, 0
        while read < most:
            growth = self._file.poll(_CHUNK)
            if growth.is_replaced:
                has_changed = True
                self._keep_common_rows()
                if self._file.offset != growth.offset + len(growth.data):
                    continue  # it goes on after the rows that were kept
            if growth.data:
                has_changed = True
                read += len(growth.data)
                self._add(growth.offset, growth.data)
            if growth.offset == 0 and growth.has_more and self._file.size > _LARGE:
                self._sample()
            if not growth.has_more:
                self.overview = None
                break
        return has_changed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _keep_common_rows(self) -> None:
        """Remove the rows that the new file does not begin with, and continue after the others.

        A cut leaves the lines before it as they were, at the same place; the blocks of rows tell the places.
        """
        self.generation += 1
        marks = self.steps.marks if self.steps.is_sorted else []
        low, high = 0, len(marks)
        while low < high:  # the number of blocks whose first lines are where they were
            middle = (low + high) // 2
            if self._is_at(*marks[middle]):
                low = middle + 1
            else:
                high = middle
        keep = low - 1  # the last one may have been cut
        if keep > 0:
            self.steps.cut_blocks(keep)
            self.evaluations.cut_rows(self._num_evaluations[keep])
            self._file.offset = marks[keep][0]
        else:
            self.steps, self.evaluations = MetricTable(), MetricTable()
            self._file.offset = 0
        del self._num_evaluations[max(0, keep) :]

    def _is_at(self, offset: int, step: int, loss: float) -> bool:
        for record in records_in(self._file.read_at(offset, _LONGEST_LINE).rpartition(b"\n")[0]):
            if "loss" in record:
                return record.get("step") == step and metrics_of(record).get("loss") == loss
        return False

    def _add(self, offset: int, lines: bytes) -> None:
        groups, latest, num_blocks = _groups_in(lines), self.steps.last_step, self.steps.num_blocks
        _extend(self.steps, offset, [group for group in groups if "loss" in group[0]])
        if self.steps.num_blocks > num_blocks:
            self._num_evaluations.append(self.evaluations.num_rows)
        evaluations = [group for group in groups if "loss" not in group[0]]
        _extend(self.evaluations, offset, evaluations)
        earliest = min((record["step"] for _, records in evaluations for record in records), default=latest)
        if latest is not None and earliest is not None and earliest < latest:
            self.generation += 1

    def _sample(self) -> None:
        size, table = self._file.size, MetricTable()
        lines = []
        for number in range(_SAMPLES):
            piece = self._file.read_at(size * number // _SAMPLES, _LONGEST_LINE // 4)
            line = piece.partition(b"\n")[2].partition(b"\n") if number else piece.partition(b"\n")
            if line[1]:
                lines.append(line[0])
        _extend(table, 0, [group for group in _groups_in(b"\n".join(lines)) if "loss" in group[0]])
        self.overview = table if table.num_rows else None


def _groups_in(lines: bytes) -> list[Group]:
    """Return the records in ``lines``, those that follow each other with the same names together."""
    try:
        records = orjson.loads(b"[" + lines.rstrip().replace(b"\n", b",") + b"]")
    except ValueError:
        records = records_in(lines)
    found = (
        record
        for record in records
        if isinstance(record, dict) and isinstance(step := record.get("step"), int) and 0 <= step < _MOST_STEPS
    )
    return [(names, list(group)) for names, group in groupby(found, key=tuple)]


def _extend(table: MetricTable, offset: int, groups: Sequence[Group]) -> None:
    """Add the records of ``groups``, which were in one piece of the file, to ``table``."""
    total = sum(len(records) for _, records in groups)
    steps = np.empty(total, np.int64)
    columns: dict[str, NDArray[np.float64]] = {}
    at = 0
    for names, records in groups:
        end = at + len(records)
        steps[at:end], found = _columns_of(names, records)
        for name, values in found.items():
            if name not in columns:
                columns[name] = np.full(total, np.nan)
            columns[name][at:end] = values
        at = end
    table.extend(offset, steps, columns)


def _columns_of(
    names: Sequence[str], records: Sequence[dict[str, Any]]
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    values: Iterable[Any] = chain.from_iterable(map(methodcaller("values"), records))
    try:
        array = np.fromiter(values, np.float64, len(records) * len(names)).reshape(len(records), len(names))
    except (TypeError, ValueError, OverflowError):
        return _columns_of_odd(records)
    columns = {_name(name): array[:, at].copy() for at, name in enumerate(names) if name != "step"}
    return array[:, names.index("step")].astype(np.int64), columns


def _columns_of_odd(
    records: Sequence[dict[str, Any]],
) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]:
    """Return the columns of records with values that are no numbers, without those values."""
    rows = [metrics_of(record) for record in records]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
    return np.array([record["step"] for record in records], np.int64), columns


def _name(key: str) -> str:
    return key[:-1] if key != "step" and key.rstrip("_") == "step" else key
