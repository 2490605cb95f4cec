"""The most frequent tokens of some documents."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MOST = 1000
_WIDTHS = ("<u2", "<u4", "<i8")


@dataclass(frozen=True, slots=True, eq=False)
class FrequentTokens:
    """Exact counts of the most frequent token ids of each shard, added up over the shards.

    ``ids`` is int64 (tokens,), ascending. ``counts`` is int64 (2, tokens): the occurrences in two disjoint samples of
    the documents, whose difference shows the noise of sampling. ``missed`` is int64 (tokens,): the most occurrences of
    each id in the shards that left it out. ``cut`` is that number for an id that all shards left out: the sum of the
    largest count that each shard left out. ``totals`` has the number of all tokens in each sample. Merging is exact, in
    any order.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    missed: NDArray[np.int64]
    cut: int
    totals: tuple[int, int]

    @classmethod
    def of(cls, counts: NDArray[np.int64], most: int = MOST) -> Self:
        """Return the ``most`` frequent tokens of ``counts``, int64 (2, ids); of equal counts the smaller id goes first.

        Each row counts the tokens of one sample of the documents.
        """
        both = counts.sum(axis=0)
        ids, cut = np.flatnonzero(both), 0
        if len(ids) > most:
            numbers = both[ids]
            cut = int(np.partition(numbers, -most - 1)[-most - 1])
            is_kept = numbers > cut
            is_kept[np.flatnonzero(numbers == cut)[: most - np.count_nonzero(is_kept)]] = True
            ids = ids[is_kept]
        first, second = counts.sum(axis=1).tolist()
        return cls(ids.astype(np.int64), counts[:, ids], np.zeros(len(ids), np.int64), cut, (first, second))

    def __add__(self, other: Self) -> Self:
        ids = np.union1d(self.ids, other.ids)
        (ours, missed), (theirs, also_missed) = self.of_ids(ids), other.of_ids(ids)
        first, second = (one + another for one, another in zip(self.totals, other.totals, strict=True))
        return type(self)(ids, ours + theirs, missed + also_missed, self.cut + other.cut, (first, second))

    def of_ids(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ``counts`` and ``missed`` of ``ids``, ascending, which include all ids that were counted."""
        places = np.searchsorted(ids, self.ids)
        counts, missed = np.zeros((2, len(ids)), np.int64), np.full(len(ids), self.cut)
        counts[:, places] = self.counts
        missed[places] = self.missed
        return counts, missed

    @property
    def total(self) -> int:
        """Return the number of tokens in both samples."""
        return sum(self.totals)

    def top(self, number: int) -> Sequence[tuple[int, int]]:
        """Return the ``number`` most frequent ids with their counts, the most frequent first."""
        both = self.counts.sum(axis=0)
        order = np.argsort(-both, kind="stable")[:number]
        return list(zip(self.ids[order].tolist(), both[order].tolist(), strict=True))

    def to_json(self) -> Mapping[str, object]:
        """Return the tokens as JSON; arrays are text, which is written and read many times faster than lists."""
        record = {
            "ids": _packed(self.ids),
            "counts": _packed(self.counts.ravel()),
            "cut": self.cut,
            "totals": [*self.totals],
        }
        return {**record, "missed": _packed(self.missed)} if self.missed.any() else record

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> Self:
        """Return the tokens that ``to_json`` described. Raises ``DataError`` for any other record."""
        ids, counts = _unpacked(record["ids"]), _unpacked(record["counts"])
        missed = _unpacked(record["missed"]) if "missed" in record else np.zeros(len(ids), np.int64)
        cut, totals = record["cut"], record["totals"]
        if (
            len(counts) != 2 * len(ids)
            or len(missed) != len(ids)
            or not isinstance(cut, int)
            or not isinstance(totals, list)
            or len(totals) != 2
            or (np.diff(ids) <= 0).any()
        ):
            msg = "the ids and counts of the frequent tokens do not belong together"
            raise DataError(msg)
        first, second = map(int, totals)
        return cls(ids, counts.reshape(2, -1), missed, cut, (first, second))


def _packed(values: NDArray[np.int64]) -> str:
    """Return ``values`` (values,) as base64 of little-endian numbers of 2, 4 or 8 bytes, as few as they fit into."""
    largest = values.max(initial=0)
    width = next(width for width in _WIDTHS if largest <= np.iinfo(width).max)
    return f"{width}:{b64encode(values.astype(width).tobytes()).decode('ascii')}"


def _unpacked(text: object) -> NDArray[np.int64]:
    width, _, encoded = str(text).partition(":")
    if width not in _WIDTHS:
        msg = "an array of the frequent tokens has another form"
        raise DataError(msg)
    return np.frombuffer(b64decode(encoded, validate=True), width).astype(np.int64)
