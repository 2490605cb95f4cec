"""The metrics of many steps as columns of numbers, and curves with few points that still show each peak."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, groupby
from operator import methodcaller
from typing import TYPE_CHECKING, Any, final

import numpy as np
import orjson

from holdfast.bootstrap.run_folder.metrics_record import metrics_of
from holdfast.bootstrap.run_reading.growing_file import GrowingFile, records_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64] | NDArray[np.float32]
    Steps = NDArray[np.int64]
    Group = tuple[tuple[str, ...], list[dict[str, Any]]]

_ROWS_IN_BLOCK = 4096
_EXACT_ROWS = 1 << 18
_RATES = frozenset({"tokens_per_second", "mfu"})
"""Metrics per second: the mean of a bucket is that over its time, in which all steps have the same work."""
_EXACT = frozenset({"tokens", "loss"})
"""Metrics that stay float64 in runs of any length."""


@final
@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over steps, as arrays of equal length.

    ``bucket`` is the number of steps that a point stands for. If it is 1, ``value`` is the recorded value. Else
    ``value`` is the mean of the bucket (of a rate the mean over its time), ``low`` and ``high`` are its extremes, and
    ``step`` is its last recorded step; they leave out values that are not finite. Rows with NaN, and buckets without
    a finite value, are left out.
    """

    step: Steps
    value: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    bucket: int = 1


@final
class _Block:
    """Rows that follow each other; a column whose values are all equal is one number."""

    __slots__ = ("columns", "is_sealed", "offset", "steps")

    def __init__(self, offset: int, steps: Steps, columns: dict[str, Numbers | float]) -> None:
        self.offset = offset
        self.steps = steps
        self.columns = columns
        self.is_sealed = False

    def add(self, steps: Steps, columns: Mapping[str, Numbers]) -> None:
        """Append rows; a column that one side lacks is NaN there."""
        before, added = len(self.steps), len(steps)
        self.steps = np.concatenate([self.steps, steps])
        for name in {*self.columns, *columns}:
            parts = [
                self.column(name, before),
                columns[name] if name in columns else np.full(added, np.nan),
            ]
            self.columns[name] = np.concatenate(parts)

    def column(self, name: str, length: int | None = None) -> Numbers:
        """Return the values of one column, NaN if there is none."""
        value = self.columns.get(name, np.nan)
        rows = len(self.steps) if length is None else length
        return value if isinstance(value, np.ndarray) else np.full(rows, value)

    def seal(self, *, is_exact: bool) -> None:
        """Make the block small, as no row will be added; ``is_exact`` keeps all columns in float64."""
        self.is_sealed = True
        for name, values in self.columns.items():
            if not isinstance(values, np.ndarray):
                continue
            if values.size and (values == values[0]).all():
                self.columns[name] = float(values[0])
            elif not is_exact and name not in _EXACT:
                self.columns[name] = values.astype(np.float32)


@final
class MetricTable:
    """Rows of metrics by step, which are only added and cut, as in ``metrics.jsonl``.

    A million rows of 17 metrics take about 50 MB: values beyond the first 262,144 rows are float32, except ``tokens``
    and ``loss``, and columns that do not change take no memory.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._is_sorted = True
        self.num_rows = 0

    @property
    def names(self) -> list[str]:
        """Return the names of all metrics, sorted."""
        return sorted({name for block in self._blocks for name in block.columns})

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks of rows."""
        return len(self._blocks)

    @property
    def last_step(self) -> int | None:
        """Return the largest step, None without rows."""
        return max((int(block.steps.max()) for block in self._blocks[-1:]), default=None)

    @property
    def first_step(self) -> int | None:
        """Return the smallest step, None without rows."""
        return min((int(block.steps.min()) for block in self._blocks[:1]), default=None)

    @property
    def marks(self) -> list[tuple[int, int, float]]:
        """Return for each block the offset of its first line in the file, its first step and the first loss."""
        return [(block.offset, int(block.steps[0]), float(block.column("loss")[0])) for block in self._blocks]

    def extend(self, offset: int, steps: Steps, columns: Mapping[str, Numbers]) -> None:
        """Add rows, which were read from the lines that begin at ``offset`` of the file."""
        if not len(steps):
            return
        last = self._blocks[-1] if self._blocks else None
        rises = bool((np.diff(steps) >= 0).all()) and (last is None or last.steps[-1] <= steps[0])
        self._is_sorted = self._is_sorted and rises
        if last is None or last.is_sealed:
            self._blocks.append(_Block(offset, steps, dict(columns)))
        else:
            last.add(steps, columns)
        self.num_rows += len(steps)
        last = self._blocks[-1]
        if len(last.steps) >= _ROWS_IN_BLOCK:
            last.seal(is_exact=self.num_rows <= _EXACT_ROWS)

    def cut_blocks(self, keep: int) -> None:
        """Remove all blocks except the first ``keep``."""
        self.num_rows -= sum(len(block.steps) for block in self._blocks[keep:])
        del self._blocks[keep:]

    def cut_rows(self, keep: int) -> None:
        """Remove all rows except the first ``keep``."""
        while self._blocks and self.num_rows > keep:
            block = self._blocks[-1]
            kept = max(0, len(block.steps) - (self.num_rows - keep))
            self.num_rows -= len(block.steps) - kept
            if kept:
                block.columns = {name: block.column(name)[:kept] for name in block.columns}
                block.steps = block.steps[:kept]
            else:
                del self._blocks[-1]

    @property
    def is_sorted(self) -> bool:
        """Return whether the steps never decreased."""
        return self._is_sorted

    def latest(self, name: str) -> tuple[int, float] | None:
        """Return the last row in which ``name`` was recorded: its step and its value, which may be infinite or NaN."""
        for block in reversed(self._blocks):
            if name in block.columns:
                values = block.column(name)
                there = np.flatnonzero(~np.isnan(values))
                at = int(there[-1]) if there.size else len(values) - 1
                return int(block.steps[at]), float(values[at])
        return None

    def rises(self, name: str) -> list[tuple[int, int]]:
        """Return each step at which the count ``name`` is larger than in the row before, with the difference."""
        before, found = 0.0, []
        for block in self._blocks:
            if not isinstance(block.columns.get(name, 0.0), np.ndarray) and block.columns.get(name) == before:
                continue
            values = np.nan_to_num(block.column(name), nan=before)
            change = np.diff(values, prepend=before)
            found += [(int(block.steps[at]), int(change[at])) for at in np.flatnonzero(change > 0)]
            before = float(values[-1])
        return found

    def curves(
        self,
        names: Iterable[str],
        first: int | None = None,
        last: int | None = None,
        *,
        width: int | None = None,
        bucket: int | None = None,
    ) -> dict[str, Curve]:
        """Return the metrics ``names`` from step ``first`` to ``last``, both included; None is the end.

        With ``width`` a curve has at most about so many points: each stands for ``bucket`` steps, the smallest power of
        two that is enough, and buckets begin at its multiples. A ``bucket`` may be given instead. Metrics that no row
        has are left out.
        """
        names = list(names)
        chosen = [block for block in self._blocks if self._overlaps(block, first, last)]
        if not chosen:
            return {}
        steps = np.concatenate([block.steps for block in chosen])
        order = None if self._is_sorted else np.argsort(steps, kind="stable")
        steps = steps if order is None else steps[order]
        low = 0 if first is None else int(np.searchsorted(steps, first))
        high = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
        steps = steps[low:high]
        if not len(steps):
            return {}
        if bucket is None:
            bucket = 1 if width is None else self.bucket(first, last, width)
        starts = _starts(steps, bucket) if bucket > 1 else None
        found = {}
        for name in names:
            if not any(name in block.columns for block in chosen):
                continue
            values = np.concatenate([block.column(name) for block in chosen])
            values = (values if order is None else values[order])[low:high].astype(np.float64)
            found[name] = _reduced(steps, values, starts, bucket, is_rate=name in _RATES)
        return found

    def bucket(self, first: int | None, last: int | None, width: int) -> int:
        """Return the number of steps that a point of ``curves`` stands for."""
        ends = [(block.steps[0], block.steps[-1]) for block in self._blocks if self._overlaps(block, first, last)]
        if not ends:
            return 1
        low, high = min(int(end[0]) for end in ends), max(int(end[1]) for end in ends)
        low = low if first is None else max(low, first)
        high = high if last is None else min(high, last)
        return _bucket_for(high - low + 1, width)

    def _overlaps(self, block: _Block, first: int | None, last: int | None) -> bool:
        if not self._is_sorted:
            return True
        return (first is None or block.steps[-1] >= first) and (last is None or block.steps[0] <= last)


def _bucket_for(num_steps: int, width: int) -> int:
    return 1 << (-(-num_steps // max(1, width)) - 1).bit_length()


def _starts(steps: Steps, bucket: int) -> NDArray[np.int64]:
    """Return the position of the first row of each bucket that has rows."""
    return np.flatnonzero(np.diff(steps // bucket, prepend=-1))


def _reduced(
    steps: Steps, values: NDArray[np.float64], starts: NDArray[np.int64] | None, bucket: int, *, is_rate: bool
) -> Curve:
    if starts is None or len(starts) == len(steps):
        there = ~np.isnan(values)
        return Curve(steps[there], values[there], bucket=bucket)
    is_finite = np.isfinite(values)
    ends = np.append(starts[1:], len(steps)) - 1
    counts = np.add.reduceat(is_finite, starts, dtype=np.int64)
    if is_finite.all():
        sums, least, most = values, values, values
    else:
        sums = np.where(is_finite, values, 0.0)
        least, most = np.where(is_finite, values, np.inf), np.where(is_finite, values, -np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        if is_rate:
            mean = counts / np.add.reduceat(np.where(is_finite, 1.0 / values, 0.0), starts)
        else:
            mean = np.add.reduceat(sums, starts) / counts
    low, high = np.minimum.reduceat(least, starts), np.maximum.reduceat(most, starts)
    there = counts > 0
    return Curve(steps[ends][there], mean[there], low[there], high[there], bucket)


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
