"""A billion samples that take no room, to start in the middle of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from benchmarks.data.corpus import LENGTH, ROWS
from benchmarks.data.work import MIXTURE
from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.row_packer import PackedRows
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.packing import ConcatPacking
from holdfast.domain.data.sample_order import RankShard, SampleOrder
from holdfast.ports.basic import BasicTokenSource
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ports.token_source import Arrays

_SHARDS, _ROWS_A_SHARD, _DISTINCT = 1000, 1_000_000, 100
SAMPLES = _SHARDS * _ROWS_A_SHARD
_PLACES = (0, 1, SAMPLES // 3, SAMPLES - ROWS, SAMPLES * 7 // 2, 10**12)


@final
class RepeatedTokens(BasicTokenSource):
    """Shards of a million rows that all lie in one small array; what is derived is kept, as an earlier start left it.

    A million documents of one row each would need offsets of their own, so rows are made here and not by the packing.
    """

    def __init__(self) -> None:
        self._ids = np.zeros(_DISTINCT * LENGTH, np.uint16)
        rows = np.arange(_ROWS_A_SHARD)
        starts, lengths = rows % _DISTINCT * LENGTH, np.full(_ROWS_A_SHARD, LENGTH)
        self._rows = {
            "starts": starts,
            "lengths": lengths,
            "rows": np.arange(_ROWS_A_SHARD + 1),
            "dropped": np.zeros(1, np.int64),
        }
        self._kept: dict[str, Arrays] = {}

    @override
    def shards(self) -> Sequence[TokenShard]:
        names = (f"{number:06}" for number in range(_SHARDS))
        return [TokenShard(name, _ROWS_A_SHARD * LENGTH, _ROWS_A_SHARD, name) for name in names]

    @override
    def open(self, shard: TokenShard) -> Tokens:
        return Tokens(self._ids, np.arange(_DISTINCT + 1) * LENGTH, np.zeros(_DISTINCT, np.uint64))

    @override
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        if key.startswith("rows "):
            return self._rows
        if key not in self._kept:
            self._kept[key] = make(self.open(shard))
        return self._kept[key]

    @override
    def fingerprint(self) -> str:
        return "repeated"


def resume_billion() -> dict[str, list[float]]:
    """Measure the time from a new start to the first batch, and that of the order alone, at several places."""
    source = RepeatedTokens()
    _first_batch(source, 0)  # what an earlier start has left: totals
    order = SampleOrder((SAMPLES,), MIXTURE)
    return {
        "batch": [_first_batch(source, place) for place in _PLACES],
        "order": [_first_locate(order, place) for place in _PLACES],
    }


def _first_batch(source: RepeatedTokens, place: int) -> float:
    began = time.perf_counter()
    rows = PackedRows(source, ConcatPacking(LENGTH), lambda hashes: np.ones(len(hashes), np.bool_), "all")
    stream = CachedBatches([rows], MIXTURE, RankShard(ROWS), length=LENGTH, epochs=None)
    batch = next(stream.batches(Cursor(place)))
    seconds = time.perf_counter() - began
    assert (batch.cursor.samples, batch.num_tokens) == (place + ROWS, ROWS * LENGTH)
    return seconds


def _first_locate(order: SampleOrder, place: int) -> float:
    began = time.perf_counter()
    order.locate(np.arange(place, place + ROWS))
    return time.perf_counter() - began
