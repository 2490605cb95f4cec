"""The order in which data are read: a pure function of the plan, the seed and the number of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.domain.data.permutation import permute
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.mixture import Mixture

_LANES = (192, 96, 48, 24, 8, 4, 2, 1)  # each can be shared by many numbers of ranks
_FEW_LANES = 8


@dataclass(frozen=True, slots=True)
class EarlierSize:
    """The number of records, the first ``size``, that a source had before the epoch ``until``."""

    until: int
    size: int


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Maps each sample of a run to a source and a record, given the ``sizes`` of the sources.

    Each epoch reads all records of a source once, in its own order. If there is only one source, it may have grown:
    ``grown`` are its former sizes, ordered by epoch. Raises ``ConfigurationError`` if the sizes do not fit the mixture.
    """

    sizes: tuple[int, ...]
    mixture: Mixture
    grown: tuple[EarlierSize, ...] = ()

    def __post_init__(self) -> None:
        assert not self.grown or len(self.sizes) == 1, "only a source that is alone may have grown"
        if len(self.sizes) != self.mixture.num_sources:
            msg = f"there are {len(self.sizes)} sources, but weights for {self.mixture.num_sources}: give each one"
            raise ConfigurationError(msg)
        for source, size in enumerate(self.sizes):
            if size < 1 and any(stage.weights[source] for stage in self.mixture.stages):
                msg = f"source {self.mixture.name_of(source)} has a weight, but no records: give it weight 0 or records"
                raise ConfigurationError(msg)

    def locate(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return each sample's source, its epoch of that source, and its record in it, all int64."""
        sources, ordinals = self.mixture.locate(samples)
        epochs, places = self._dealt(sources, ordinals)
        records = np.empty_like(places)
        for source in np.unique(sources).tolist():
            of_source = np.flatnonzero(sources == source)
            for epoch in np.unique(epochs[of_source]).tolist():
                here = of_source[epochs[of_source] == epoch]
                records[here] = permute(places[here], self._size(source, epoch), self.mixture.seed, source, epoch)
        return sources, epochs, records

    def start_of(self, epoch: int) -> int:
        """Return the number of samples of the only source before its ``epoch``."""
        begins, ends = [0, *(past.until for past in self.grown)], [*(past.until for past in self.grown), epoch]
        sizes = [*(past.size for past in self.grown), self.sizes[0]]
        return sum(size * max(0, min(end, epoch) - begin) for begin, end, size in zip(begins, ends, sizes, strict=True))

    def next_epoch(self, samples: int) -> int:
        """Return the first epoch of the only source that begins after its first ``samples`` samples."""
        if not samples:
            return 0
        return int(self.locate(np.array([samples - 1]))[1][0]) + 1

    def total(self, epochs: int) -> int:
        """Return the number of samples before the first that would read a source for more than ``epochs`` epochs.

        With several sources, the data end when the first source is used up. A single source is read in all epochs.
        """
        limits = [self.start_of(epochs)] if self.grown else [size * epochs for size in self.sizes]
        whole, beyond = 0, 1
        while self._is_within(beyond, limits):
            whole, beyond = beyond, beyond * 2
        while beyond - whole > 1:
            middle = (whole + beyond) // 2
            whole, beyond = (middle, beyond) if self._is_within(middle, limits) else (whole, middle)
        # a block may begin anywhere, so one that holds a multiple of their size reaches as far before it or behind it
        block = np.arange(max(0, whole - 1) * self.mixture.block, (beyond + 1) * self.mixture.block)
        sources, ordinals = self.mixture.locate(block)
        return int(block[ordinals >= np.array(limits)[sources]][0])

    def _dealt(
        self, sources: NDArray[np.int64], ordinals: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the epoch and the position in it, both int64, of samples given by source and ordinal."""
        if not self.grown:
            return np.divmod(ordinals, np.array(self.sizes)[sources])
        begins = np.array([0, *(past.until for past in self.grown)])
        starts = np.array([self.start_of(epoch) for epoch in begins.tolist()])
        sizes = np.array([*(max(1, past.size) for past in self.grown), self.sizes[0]])
        spans = np.searchsorted(starts, ordinals, side="right") - 1
        epochs, places = np.divmod(ordinals - starts[spans], sizes[spans])
        return begins[spans] + epochs, places

    def _size(self, source: int, epoch: int) -> int:
        return next((past.size for past in self.grown if epoch < past.until), self.sizes[source])

    def _is_within(self, blocks: int, limits: list[int]) -> bool:
        quotas = self.mixture.quotas(blocks * self.mixture.block)
        return all(quota <= limit for quota, limit in zip(quotas, limits, strict=True))


@dataclass(frozen=True, slots=True)
class RankShard:
    """The samples that one of ``ranks`` equal ranks takes of each batch of ``batch`` samples.

    Raises ``ConfigurationError`` if ``batch`` is not divisible by ``ranks``.
    """

    batch: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.batch % self.ranks:
            msg = f"{self.ranks} processes cannot share optimizer.batch_size={self.batch} evenly: "
            raise ConfigurationError(msg + f"choose a multiple of {self.ranks}")

    def of(self, start: int) -> range:
        """Return the rank's samples of the batch that begins at sample ``start``: a contiguous range, in rank order."""
        size = self.batch // self.ranks
        return range(start + self.rank * size, start + (self.rank + 1) * size)


def choose_lanes(num_units: int) -> int:
    """Return the number of lanes in which to stream ``num_units`` units.

    Each lane has at least four units to shuffle. More than eight lanes cost memory and time; they are used only if each
    lane then has at least sixteen units, because many ranks may share such data.
    """
    return next((lanes for lanes in _LANES if lanes * (4 if lanes <= _FEW_LANES else 16) <= num_units), 1)


def unit_order(num_units: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the units in the order, int64, in which an epoch deals them: the k-th one to lane k modulo the lanes."""
    return permute(np.arange(num_units), num_units, seed, epoch)


@lru_cache(maxsize=8)  # all lanes of a source ask for the same epochs
def deal_units(sizes: tuple[int, ...], lanes: int, seed: int, epoch: int) -> Sequence[NDArray[np.int64]]:
    """Return the units that each of ``lanes`` lanes reads in an epoch, in their order, int64.

    In the order of ``unit_order``, each unit goes to the lane that has the fewest bytes so far; ``sizes`` are those of
    the units in bytes.
    """
    loads = [(0, lane) for lane in range(lanes)]
    dealt: list[list[int]] = [[] for _ in range(lanes)]
    for unit in unit_order(len(sizes), seed, epoch).tolist():
        load, lane = loads[0]
        dealt[lane].append(unit)
        heapreplace(loads, (load + max(1, sizes[unit]), lane))
    return [np.array(units, np.int64) for units in dealt]


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """The first epoch of each part of the data that was added, in the order of addition.

    None as the last of ``epochs`` means the first epoch that begins after the ``samples`` samples read so far.
    """

    epochs: tuple[int | None, ...] = ()
    samples: int = 0

    def resolve(self, rows: Sequence[int], mixture: Mixture) -> tuple[EarlierSize, ...]:
        """Return the number of rows before each part was added; ``rows`` are the numbers of rows of the parts.

        The first of ``rows`` is the number of rows with which the run began.
        """
        sizes = list(accumulate(rows))
        grown: tuple[EarlierSize, ...] = ()
        for size, known in zip(sizes, self.epochs, strict=False):
            last = grown[-1].until if grown else 0
            until = SampleOrder((size,), mixture, grown).next_epoch(self.samples) if known is None else known
            grown = (*grown, EarlierSize(max(last, until), size))
        return grown
