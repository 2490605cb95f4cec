"""The description of a shard that is stored with its tokens: its documents, and the records that were left out."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, final

import numpy as np

from holdfast.application.data.rejected_records import UNUSABLE, Profiling, ReadStatistics
from holdfast.domain.data.loss_mask import num_supervised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.text_reader import TokenizedGroup
    from holdfast.ports.data_source import Unit


class ShardProfile(Profiling, Protocol):
    """A description of documents that can be stored."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the description as JSON, equal for equal documents."""
        ...


@final
class ShardMetaBuilder:
    """Collects the description of a shard while its documents are tokenized, in the order of the shard.

    Equal documents give equal bytes. ``profile`` describes the documents further.
    """

    def __init__(self, profile: ShardProfile | None = None) -> None:
        self.statistics = ReadStatistics(profile)
        self.rejected: list[object] = []
        self._profile = profile
        self._units: list[tuple[str, int]] = []
        self._starts: list[NDArray[np.int64]] = []
        self._scores: dict[str, list[tuple[int, NDArray[np.float32]]]] = {}
        self._supervised: list[tuple[int, int]] = []
        self._is_masked = False
        self._num_documents = 0

    def begin(self, unit: Unit) -> None:
        """Begin with the documents of ``unit``."""
        self._units.append((unit.name, 0))
        self._supervised.append((0, 0))

    def add(self, group: TokenizedGroup) -> None:
        """Add documents of the unit that was begun last."""
        name, count = self._units[-1]
        self._units[-1] = (name, count + len(group.starts))
        self._starts.append(np.array(group.starts, np.int64))
        for score in sorted({score for scores in group.scores for score in scores}):
            values = np.array([scores.get(score, np.nan) for scores in group.scores], np.float32)
            self._scores.setdefault(score, []).append((self._num_documents, values))
        self._num_documents += len(group.starts)
        self._count_supervised(group)

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON."""
        statistics = self.statistics
        starts = np.concatenate([np.zeros(0, np.int64), *self._starts])
        meta: dict[str, Any] = {
            "records": statistics.records,
            "drops": statistics.drops,
            "warnings": statistics.warnings,
            "rejected": self.rejected,
            "units": [list(unit) for unit in self._units],
            "positions": packed(np.diff(starts, prepend=np.int64(0))),
        }
        if self._scores:
            meta["scores"] = {name: packed(self._whole(parts)) for name, parts in sorted(self._scores.items())}
        if self._is_masked:
            meta["supervised"] = [list(counts) for counts in self._supervised]
        if self._profile is not None:
            meta["profile"] = self._profile.to_json()
        return meta

    def _count_supervised(self, group: TokenizedGroup) -> None:
        self._is_masked |= group.loss_mask is not None
        num_tokens = len(group.ids)
        targets = num_tokens - len(group.starts)
        if group.loss_mask is not None:
            targets = num_supervised(group.loss_mask, group.offsets)
        supervised, tokens = self._supervised[-1]
        self._supervised[-1] = (supervised + targets, tokens + num_tokens)

    def _whole(self, parts: Sequence[tuple[int, NDArray[np.float32]]]) -> NDArray[np.float32]:
        whole = np.full(self._num_documents, np.nan, np.float32)
        for begin, values in parts:
            whole[begin : begin + len(values)] = values
        return whole


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShardDocuments:
    """The documents of a shard: document ``i`` begins at ``positions[i]`` (int64) of the unit ``units[numbers[i]]``."""

    units: Sequence[str]
    numbers: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self | None:
        """Return the documents that ``meta`` describes, None if an earlier version made the shard without them."""
        if "positions" not in meta:
            return None
        counts = [count for _, count in meta["units"]]
        positions = np.cumsum(unpacked(meta["positions"], np.int64))
        return cls([name for name, _ in meta["units"]], np.repeat(np.arange(len(counts)), counts), positions)


def scores_of(meta: Mapping[str, Any], name: str) -> NDArray[np.float32] | None:
    """Return the score ``name`` of each document, float32 (documents,) with NaN for no score; None if there is none."""
    scores = meta.get("scores", {})
    return unpacked(scores[name], np.float32) if name in scores else None


@dataclass(frozen=True, slots=True)
class SupervisedTokens:
    """The number of tokens of some documents that the model is trained to predict, ``supervised``, and of all."""

    supervised: int
    tokens: int


def supervised_tokens(meta: Mapping[str, Any]) -> Mapping[str, SupervisedTokens] | None:
    """Return the counts of supervised tokens of a shard's units, by name; None if the shard has no loss mask."""
    if "supervised" not in meta:
        return None
    pairs = zip(meta["units"], meta["supervised"], strict=True)
    return {name: SupervisedTokens(supervised, tokens) for (name, _), (supervised, tokens) in pairs}


def total_supervised(metas: Sequence[Mapping[str, Any]]) -> SupervisedTokens | None:
    """Return the counts of supervised tokens of all shards together; None if no shard has a loss mask."""
    counts = [each for meta in metas for each in (supervised_tokens(meta) or {}).values()]
    if not counts:
        return None
    return SupervisedTokens(sum(each.supervised for each in counts), sum(each.tokens for each in counts))


def total_drops(metas: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of records that were left out of all shards, by reason, sorted by name."""
    total: Counter[str] = Counter()
    for meta in metas:
        # shards of earlier versions list the records that could not be used, and count nothing
        total.update(meta["drops"] if "drops" in meta else {UNUSABLE: len(meta["rejected"])})
    return dict(sorted((reason, count) for reason, count in total.items() if count))


def total_warnings(metas: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of records of all shards that are used in spite of a warning, by reason, sorted by name."""
    total: Counter[str] = Counter()
    for meta in metas:
        total.update(meta.get("warnings", {}))
    return dict(sorted(total.items()))


def packed(values: NDArray[Any]) -> str:
    """Return ``values``, of one dimension, as text that ``unpacked`` reads: compressed little-endian bytes."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return b64encode(zlib.compress(little.tobytes(), 6)).decode("ascii")


def unpacked(text: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the values of ``dtype`` that ``packed`` wrote."""
    return np.frombuffer(zlib.decompress(b64decode(text)), np.dtype(dtype).newbyteorder("<")).astype(dtype)
