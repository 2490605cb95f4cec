"""The policy by which the micro-batch adapts to the memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class MicroBatchState:
    """The micro-batch of ``rows`` in use; ``shortages`` maps sizes to how often they did not fit.

    ``quiet_steps`` have passed without an out-of-memory error since the size was adopted.
    """

    rows: int
    shortages: Mapping[int, int] = field(default_factory=dict)
    quiet_steps: int = 0


@dataclass(frozen=True, slots=True)
class MicroBatchPolicy:
    """Smaller micro-batches after an out-of-memory error, larger ones after quiet steps, up to ``max_rows``.

    Sizes divide ``batch_rows``, so that all micro-batches have one shape. A larger size is tried after ``grow_after``
    quiet steps (0 means never), doubled each time that it did not fit; a size that did not fit ``max_shortages`` times
    is not tried again, nor is a larger one. The number of
    out-of-memory errors of a run is therefore limited.
    """

    max_rows: int
    batch_rows: int
    grow_after: int = 200
    max_shortages: int = 3

    @property
    def sizes(self) -> Sequence[int]:
        """Return the possible sizes in rows, in increasing order."""
        dividing = {rows for rows in range(1, self.max_rows + 1) if self.batch_rows % rows == 0}
        return sorted({*dividing, self.max_rows})

    def after_shortage(self, known: MicroBatchState, rows: int) -> MicroBatchState:
        """Return the state after ``rows`` did not fit: at least halved, down to one row."""
        shortages = {**known.shortages, rows: known.shortages.get(rows, 0) + 1}
        fewer = [size for size in self.sizes if size < rows and size <= (rows + 1) // 2]
        return MicroBatchState(max(fewer, default=1), shortages)

    def after_step(self, known: MicroBatchState, *, is_quiet: bool) -> MicroBatchState:
        """Return the state after a step; a step that is not ``is_quiet`` came close to an out-of-memory error."""
        if not is_quiet:
            return replace(known, quiet_steps=0)
        known = replace(known, quiet_steps=known.quiet_steps + 1)
        more = next((size for size in self.sizes if size > known.rows), None)
        if more is None or not known.shortages or not self.grow_after:
            return known
        failed = max((times for rows, times in known.shortages.items() if rows <= more), default=0)
        is_due = known.quiet_steps >= self.grow_after * 2 ** max(0, failed - 1)
        return MicroBatchState(more, known.shortages) if is_due and failed < self.max_shortages else known


def max_micro_batch(batch_size: int, fixed: int | None, ranks: int) -> int:
    """Return the largest micro-batch of a rank: ``fixed``, or the rank's whole share of the batch."""
    whole = max(1, batch_size // ranks)
    return min(fixed or whole, whole)


def next_candidate(
    sizes: Sequence[int], peaks: Mapping[int, float], failed: Collection[int], max_peak: float
) -> int | None:
    """Return the next of ``sizes`` (rising) to try in the search for the largest that stays within ``max_peak`` bytes.

    ``peaks`` maps each size that was tried to its peak of memory in bytes, and 0 to the peak without any rows;
    ``failed`` are the sizes that did not fit. The smallest size comes first, then the largest that a straight line
    through the last two peaks allows, at most four times the last one. None if no size is left to try.
    """
    fitting = sorted(rows for rows, peak in peaks.items() if rows and peak <= max_peak)
    if not fitting:
        return None if failed or any(peaks) else sizes[0]
    last, before = fitting[-1], fitting[-2] if len(fitting) > 1 else 0
    slope = (peaks[last] - peaks[before]) / (last - before)
    too_large = min((*failed, *(rows for rows, peak in peaks.items() if peak > max_peak)), default=sizes[-1] + 1)
    more = [rows for rows in sizes if last < rows < min(too_large, 4 * last + 1)]
    return max((rows for rows in more if peaks[last] + slope * (rows - last) <= max_peak), default=None)
