"""The mixture of several sources: assigns each sample to a source."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.data.permutation import permute
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Stage:
    """The integer weights of all sources from the sample ``start`` on; a source of weight 0 is not read."""

    start: int
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Assigns samples to sources by weight, and counts the samples of the same source before each.

    From the start of each stage on, samples come in blocks of ``block``, the last of which ends where the next stage
    starts. The weights determine the number of samples of each source in a block; a permutation, chosen by ``seed`` and
    the block, determines their positions. Blocks are computed independently, so a late sample costs no more than the
    first. ``names``, if given, name the sources in errors. Stages start at increasing samples, the first stage at 0.
    Raises ``ConfigurationError`` for other starts and for impossible weights.
    """

    seed: int
    stages: tuple[Stage, ...]
    block: int = 1024
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        starts = [stage.start for stage in self.stages]
        if self.block < 1 or starts[:1] != [0]:
            msg = f"the first stage must start at sample 0, in blocks of at least 1, but stages start at {starts}"
            raise ConfigurationError(msg)
        if any(one >= two for one, two in pairwise(starts)):
            msg = f"each stage must start after the one before it, but they start at {starts}"
            raise ConfigurationError(msg)
        for number, stage in enumerate(self.stages):
            if len(stage.weights) != self.num_sources or min(stage.weights, default=0) < 0 or not any(stage.weights):
                msg = (
                    f"stage {number} has the weights {stage.weights}: give each of the {self.num_sources} sources one, "
                    "none below 0 and not all 0"
                )
                raise ConfigurationError(msg)

    @property
    def num_sources(self) -> int:
        """Return the number of sources."""
        return len(self.stages[0].weights)

    def name_of(self, source: int) -> str:
        """Return the name of ``source`` in quotes, or its number if it has none."""
        return repr(self.names[source]) if self.names else str(source)

    def locate(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return each sample's source and its ordinal among the samples of that source, both int64.

        Ordinals start at 0 and continue through all stages.
        """
        if self.num_sources == 1:
            return np.zeros_like(samples), samples.copy()
        starts = np.array([stage.start for stage in self.stages])
        begins = starts[np.searchsorted(starts, samples, side="right") - 1]
        places = (samples - begins) % self.block
        blocks, numbers = np.unique(samples - places, return_inverse=True)
        sources, ordinals = dealt = np.empty((2, len(blocks), self.block), np.int64)
        ends = np.append(starts, np.iinfo(np.int64).max)[np.searchsorted(starts, blocks, side="right")]
        for number, (block, end) in enumerate(zip(blocks.tolist(), ends.tolist(), strict=True)):
            size = min(self.block, end - block)
            dealt[:, number, :size] = self._deal(block, size)
        return sources[numbers, places], ordinals[numbers, places]

    def gives_from(self, sample: int) -> tuple[bool, ...]:
        """Return whether each source gives any sample from ``sample`` on."""
        current = bisect_right(self.stages, sample, key=lambda stage: stage.start) - 1
        return tuple(
            any(stage.weights[source] for stage in self.stages[current:]) for source in range(self.num_sources)
        )

    def quotas(self, samples: int) -> tuple[int, ...]:
        """Return the number of samples of each source among the first ``samples``; exact at the ends of blocks.

        The numbers sum to ``samples``, and none decreases as ``samples`` grows. In each stage each is less than 1.7
        from its ideal share, and less than 1 with three sources or fewer (the bound follows from the tree, see
        ``_splits``).
        """
        totals = [0] * self.num_sources
        current = bisect_right(self.stages, samples, key=lambda stage: stage.start)
        ends = [*(stage.start for stage in self.stages[1:current]), samples]
        for stage, end in zip(self.stages, ends, strict=False):
            for source, quota in _quotas(stage.weights, end - stage.start).items():
                totals[source] += quota
        return tuple(totals)

    def _deal(self, start: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return source and ordinal of each sample of the block of ``size`` samples from ``start`` on."""
        before = np.array(self.quotas(start))
        quotas = np.array(self.quotas(start + size)) - before
        slots = np.arange(size)
        number, offset = divmod(start, self.block)
        place = (number, offset) if offset else (number,)  # a block at a multiple of its size has its number alone
        sources = np.repeat(np.arange(self.num_sources), quotas)[permute(slots, size, self.seed, *place)]
        ordinals = np.empty_like(slots)
        ordinals[np.argsort(sources, kind="stable")] = slots + np.repeat(before - np.cumsum(quotas) + quotas, quotas)
        return sources, ordinals


def _quotas(weights: tuple[int, ...], samples: int) -> dict[int, int]:
    root, splits = _splits(weights)
    quotas = {root: samples}
    for node, left, right, left_weight, weight in splits:
        quota = quotas.pop(node)
        quotas[left] = (2 * quota * left_weight + weight) // (2 * weight)
        quotas[right] = quota - quotas[left]
    return quotas


@lru_cache(maxsize=256)
def _splits(weights: tuple[int, ...]) -> tuple[int, tuple[tuple[int, int, int, int, int], ...]]:
    """Return the root of Huffman's tree over the sources, and its splits from there down.

    Each split rounds, so a source is off by half a sample for each node on its path, times its share of that node. In
    Huffman's tree these shares fall at least like 1, 1, 1/2, 1/3, 1/5, ... (Fibonacci): together less than 3.36 / 2.
    """
    heap = [(weight, source) for source, weight in enumerate(weights) if weight]
    heapify(heap)
    splits = []
    for node in range(len(weights), len(weights) + len(heap) - 1):
        (right_weight, right), (left_weight, left) = heappop(heap), heappop(heap)
        heappush(heap, (left_weight + right_weight, node))
        splits.append((node, left, right, left_weight, left_weight + right_weight))
    return heap[0][1], tuple(reversed(splits))
