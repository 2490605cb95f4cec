"""Profiles of documents and their tokens, which can be merged and compared."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import asdict, astuple, dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from holdfast.domain.data.frequent_tokens import FrequentTokens
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

_SKETCH_BITS = 12
_REGISTERS = 1 << _SKETCH_BITS
_LARGEST = 64 - _SKETCH_BITS + 1

STANDARD_ERROR = 1.04 / math.sqrt(_REGISTERS)
"""The standard error of the estimate, relative to the number: 1.6 % (Flajolet et al. 2007)."""


@final
class DistinctSketch:
    """A HyperLogLog sketch with 2^12 registers of 64-bit hashes; two sketches merge exactly, in any order.

    ``registers`` is uint8 (4096,): for the hashes that share their first 12 bits, the largest number of zeros that
    lead the other bits, plus one.
    """

    def __init__(self, registers: NDArray[np.uint8] | None = None) -> None:
        self.registers = np.zeros(_REGISTERS, np.uint8) if registers is None else registers

    @classmethod
    def of(cls, hashes: NDArray[np.uint64]) -> Self:
        """Return the sketch of ``hashes``, uint64 (documents,)."""
        registers = np.zeros(_REGISTERS, np.uint8)
        rest = hashes << np.uint64(_SKETCH_BITS)
        high = (rest >> np.uint64(32)).astype(np.float64)  # halves of 32 bits, which float64 represents exactly
        low = (rest & np.uint64(0xFFFFFFFF)).astype(np.float64)
        length = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
        ranks = np.minimum(64 - length + 1, _LARGEST).astype(np.uint8)
        np.maximum.at(registers, (hashes >> np.uint64(64 - _SKETCH_BITS)).astype(np.intp), ranks)
        return cls(registers)

    def __or__(self, other: Self) -> Self:
        return type(self)(np.maximum(self.registers, other.registers))

    def estimate(self) -> int:
        """Return the estimated number of distinct hashes.

        The estimator is Ertl's (arXiv 1702.01284, algorithm 6), which needs no correction for small or large numbers.
        """
        counts = np.bincount(self.registers, minlength=_LARGEST + 1).tolist()
        total = _REGISTERS * _tau(1 - counts[_LARGEST] / _REGISTERS)
        for count in reversed(counts[1:_LARGEST]):
            total = 0.5 * (total + count)
        total += _REGISTERS * _sigma(counts[0] / _REGISTERS)
        return round(_REGISTERS**2 / (2 * math.log(2) * total))

    def to_json(self) -> str:
        """Return the registers, 6 bits each, in base64."""
        bits = np.unpackbits(self.registers[:, None], axis=1)[:, 2:]
        return b64encode(np.packbits(bits).tobytes()).decode("ascii")

    @classmethod
    def from_json(cls, record: str) -> Self:
        """Return the sketch that ``to_json`` described. Raises ``DataError`` for any other text."""
        packed = np.frombuffer(b64decode(record, validate=True), np.uint8)
        if len(packed) != _REGISTERS * 6 // 8:
            msg = "a sketch of distinct documents has another length"
            raise DataError(msg)
        bits = np.unpackbits(packed).reshape(_REGISTERS, 6)
        return cls(np.packbits(np.pad(bits, ((0, 0), (2, 0))), axis=1)[:, 0])


def _sigma(share: float) -> float:
    """Return the contribution of the registers that are zero; ``share`` is from 0 to 1."""
    if share == 1:
        return math.inf
    power, total, weight = share, share, 1.0
    while True:
        power *= power
        before = total
        total += power * weight
        weight += weight
        if total == before:
            return total


def _tau(share: float) -> float:
    """Return the contribution of the registers that are full; ``share`` is the share of the others."""
    if share in {0, 1}:
        return 0.0
    root, total, weight = share, 1 - share, 1.0
    while True:
        root = math.sqrt(root)
        before = total
        weight *= 0.5
        total -= (1 - root) ** 2 * weight
        if total == before:
            return total / 3


SCHEMA = 1

FINE = 256
"""The whole number that stands for 1 in the histograms of ratios and shares."""

LENGTHS = ("tokens", "bytes")
RATIOS = ("bytes_per_token",)
SHARES = ("letters", "digits", "spaces", "symbols", "non_ascii")
"""Kinds of bytes, whose shares of a document's text are in histograms."""

_WHOLE = (*LENGTHS, *RATIOS)
_QUARTER = 3  # a mask of a hash, for one document in four
_SAMPLED_CHARACTERS = 128
_SAMPLED_TOKENS = 256
_WAITING = 4096  # documents that are counted at a time


def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(256, SHARES.index("non_ascii"), np.uint8)
    for code in range(128):
        letter = chr(code)
        named = "letters" if letter.isalpha() else "digits" if letter.isdigit() else "symbols"
        kinds[code] = SHARES.index("spaces" if letter.isspace() else named)
    return kinds


_KIND_OF_BYTE = _kinds()


@dataclass(frozen=True, slots=True)
class ProfileTotals:
    """The number of some documents, and of their UTF-8 bytes, characters and tokens; tokens include end-of-text."""

    documents: int = 0
    num_bytes: int = 0
    characters: int = 0
    tokens: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Figures of some documents: counts, histograms, distinct documents, frequent tokens, languages and rejects.

    ``histograms`` has, by name, the tokens and bytes of each document, 256 times its bytes a token, and 256 times the
    shares of the kinds of bytes; the shares are those of the middle 128 characters. ``frequent`` counts the middle 256
    tokens of each document, so that a long document does not outweigh many others. Both are of two documents in four,
    chosen by hash. ``languages`` and ``rejects`` count documents by language and by the reason of their rejection.
    Everything is a whole number, so profiles merge exactly, in any order.
    """

    totals: ProfileTotals = field(default_factory=ProfileTotals)
    histograms: Mapping[str, LogHistogram] = field(default_factory=dict)
    distinct: DistinctSketch = field(default_factory=DistinctSketch)
    frequent: FrequentTokens = field(default_factory=lambda: FrequentTokens.of(np.zeros((2, 0), np.int64)))
    languages: Mapping[str, int] = field(default_factory=dict)
    rejects: Mapping[str, int] = field(default_factory=dict)

    @property
    def documents(self) -> int:
        """Return the number of documents."""
        return self.totals.documents

    def merge(self, other: Self) -> Self:
        """Return the profile of the documents of both; exact, and the same in any order."""
        names = sorted({*self.histograms, *other.histograms})
        none = LogHistogram()
        return type(self)(
            self.totals + other.totals,
            {name: self.histograms.get(name, none) + other.histograms.get(name, none) for name in names},
            self.distinct | other.distinct,
            self.frequent + other.frequent,
            Counter(self.languages) + Counter(other.languages),
            Counter(self.rejects) + Counter(other.rejects),
        )

    @classmethod
    def merged(cls, profiles: Iterable[Self]) -> Self:
        """Return the profile of all documents of ``profiles``."""
        return reduce(cls.merge, profiles, cls())

    def quantile(self, name: str, share: float) -> float | None:
        """Return the value of the histogram ``name`` below which ``share`` of its documents lie, in its own unit.

        Lengths are in tokens or bytes, and shares of bytes from 0 to 1. Returns None if no document was measured.
        """
        quantile = self.histograms[name].quantile(share) if name in self.histograms else None
        return quantile if quantile is None or name in LENGTHS else quantile / FINE

    def to_json(self) -> Mapping[str, Any]:
        """Return the profile as JSON, equal for equal profiles if its keys are sorted."""
        return {
            "schema": SCHEMA,
            "totals": asdict(self.totals),
            "histograms": {name: each.to_json() for name, each in self.histograms.items()},
            "distinct": self.distinct.to_json(),
            "frequent": self.frequent.to_json(),
            "languages": dict(self.languages),
            "rejects": dict(self.rejects),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the profile that ``to_json`` described.

        Raises ``DataError`` for a profile of another version, or anything else.
        """
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            msg = "the profile was written by another version of Holdfast: prepare the data again with this one"
            raise DataError(msg)
        try:
            return cls(
                ProfileTotals(**{name: int(count) for name, count in record["totals"].items()}),
                {name: LogHistogram.from_json(each) for name, each in record["histograms"].items()},
                DistinctSketch.from_json(record["distinct"]),
                FrequentTokens.from_json(record["frequent"]),
                {str(name): int(count) for name, count in record["languages"].items()},
                {str(reason): int(count) for reason, count in record["rejects"].items()},
            )
        except (DataError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            msg = f"the profile is damaged ({error}): prepare the data again"
            raise DataError(msg) from error


@final
class ProfileBuilder:
    """Builds the profile of documents that arrive some at a time; their division into calls of ``add`` has no effect.

    Small arrays wait until they are worth counting, so the cost for each document is small.
    """

    def __init__(self) -> None:
        self._profile = Profile()
        self._counts = np.zeros((2, 0), np.int64)
        self._waiting: list[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]] = []
        self._pieces: list[bytes] = []
        self._samples: tuple[list[NDArray[np.unsignedinteger]], ...] = ([], [])
        self._num_waiting = 0

    @property
    def documents(self) -> int:
        """Return the number of documents so far."""
        return self._profile.documents + self._num_waiting

    def add(
        self,
        texts: Sequence[str],
        ids: NDArray[np.unsignedinteger],
        offsets: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> None:
        """Add ``texts``, and their tokens ``ids[offsets[i]:offsets[i + 1]]``; ``hashes`` identify the documents.

        ``ids`` is uint16 or uint32 (tokens,), ``offsets`` is int64 (documents + 1,), ``hashes`` is uint64 (documents,).
        A text must not hold half of a surrogate pair.
        """
        if not texts:
            return
        characters = [*map(len, texts)]
        sizes = [size if text.isascii() else len(text.encode()) for text, size in zip(texts, characters, strict=True)]
        lengths, starts = np.diff(offsets), offsets[:-1]
        self._waiting.append((sum(characters), np.array(sizes, np.int64), lengths, hashes))
        self._num_waiting += len(texts)
        begins = starts + np.maximum(lengths - _SAMPLED_TOKENS, 0) // 2
        ends = begins + np.minimum(lengths, _SAMPLED_TOKENS)
        middles = np.maximum(np.array(characters) - _SAMPLED_CHARACTERS, 0) // 2
        groups = hashes & _QUARTER
        for part, kept in enumerate(self._samples):
            chosen = np.flatnonzero(groups == part)
            if len(chosen):
                spans = zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True)
                kept.append(np.concatenate([ids[begin:end] for begin, end in spans]))
                places = zip(chosen.tolist(), middles[chosen].tolist(), strict=True)
                self._pieces += [texts[each][start : start + _SAMPLED_CHARACTERS].encode() for each, start in places]
        if self._num_waiting >= _WAITING:
            self._flush()

    def build(self, languages: Mapping[str, int] | None = None, rejects: Mapping[str, int] | None = None) -> Profile:
        """Return the profile so far, with the documents by language and the rejects by reason."""
        self._flush()
        frequent = FrequentTokens.of(self._counts)
        return self._profile.merge(Profile(frequent=frequent, languages=languages or {}, rejects=rejects or {}))

    def to_json(self) -> Mapping[str, Any]:
        """Return the profile so far as JSON, without languages and rejects."""
        return self.build().to_json()

    def _flush(self) -> None:
        """Count all that waits."""
        if not self._num_waiting:
            return
        characters, *arrays = zip(*self._waiting, strict=True)
        sizes, lengths, hashes = map(np.concatenate, arrays)
        ratios = sizes * FINE // np.maximum(lengths, 1)
        histograms = {name: LogHistogram.of(each) for name, each in zip(_WHOLE, (lengths, sizes, ratios), strict=True)}
        totals = ProfileTotals(len(sizes), int(sizes.sum()), sum(characters), int(lengths.sum()))
        profile = Profile(totals, {**histograms, **_shares(self._pieces)}, DistinctSketch.of(hashes))
        self._profile = self._profile.merge(profile)
        for row, kept in enumerate(self._samples):
            if kept:
                self._count(np.concatenate(kept), row)
                kept.clear()
        self._waiting.clear()
        self._pieces.clear()
        self._num_waiting = 0

    def _count(self, ids: NDArray[np.unsignedinteger], row: int) -> None:
        counts = np.bincount(ids)
        if len(counts) > self._counts.shape[1]:
            self._counts = np.pad(self._counts, ((0, 0), (0, len(counts) - self._counts.shape[1])))
        self._counts[row, : len(counts)] += counts


def _shares(pieces: Sequence[bytes]) -> Mapping[str, LogHistogram]:
    """Return the histograms of the shares of the kinds of bytes in each of ``pieces``; empty pieces are left out."""
    pieces = [*filter(None, pieces)]
    if not pieces:
        return {}
    sizes = np.array([*map(len, pieces)], np.int64)
    kinds = _KIND_OF_BYTE[np.frombuffer(b"".join(pieces), np.uint8)]
    cells = np.repeat(np.arange(len(pieces)) * len(SHARES), sizes) + kinds
    counts = np.bincount(cells, minlength=len(pieces) * len(SHARES)).reshape(-1, len(SHARES))
    return {name: LogHistogram.of(counts[:, kind] * FINE // sizes) for kind, name in enumerate(SHARES)}


_BITS = 5  # of a value's leading bits that name its bucket
_PER_OCTAVE = 1 << _BITS

RELATIVE_ERROR = 0.5 / _PER_OCTAVE
"""The largest error of a quantile, relative to its value: half the width of a bucket, about 1.6 %."""


@final
class LogHistogram:
    """Counts of whole numbers in buckets whose bounds grow geometrically, as in DDSketch (arXiv 1908.10693).

    Values below 64 have a bucket each. Each power of two above is divided into 32 buckets of equal width, as in
    HdrHistogram, so that a value differs from the middle of its bucket by at most ``RELATIVE_ERROR``. The bucket of a
    value follows from its bits alone, so the counts are equal on each machine. ``counts`` is int64 (buckets,), without
    zeros at its end. Two histograms merge exactly, in any order.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        counts = np.zeros(0, np.int64) if counts is None else counts
        self.counts = counts[: int(np.flatnonzero(counts).max(initial=-1)) + 1]

    @classmethod
    def of(cls, values: NDArray[np.int64]) -> Self:
        """Return the histogram of ``values``, int64 (values,), each from 0 to below 2^53."""
        return cls(np.bincount(bucket_of(values)).astype(np.int64))

    def __add__(self, other: Self) -> Self:
        short, long = sorted((self.counts, other.counts), key=len)
        counts = long.copy()
        counts[: len(short)] += short
        return type(self)(counts)

    @property
    def total(self) -> int:
        """Return the number of values."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """Return the value below which ``share`` of the values lie, None if there are none."""
        total = self.total
        if not total:
            return None
        rank = min(int(share * total), total - 1)
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        first, end = bounds_of(bucket)
        return (first + end - 1) / 2

    def to_json(self) -> Mapping[str, Sequence[int]]:
        """Return the buckets that have values, each as the distance to the one before, and their counts."""
        filled = np.flatnonzero(self.counts)
        return {"buckets": np.diff(filled, prepend=0).tolist(), "counts": self.counts[filled].tolist()}

    @classmethod
    def from_json(cls, record: Mapping[str, Sequence[int]]) -> Self:
        """Return the histogram that ``to_json`` described. Raises ``DataError`` for any other record."""
        steps = np.array(record["buckets"], np.int64)
        counts = np.array(record["counts"], np.int64)
        filled = np.cumsum(steps)
        if len(filled) != len(counts) or (steps[1:] <= 0).any() or (counts <= 0).any() or (filled >= 53 * 32).any():
            msg = "a histogram's buckets and counts do not belong together"
            raise DataError(msg)
        dense = np.zeros(int(filled[-1]) + 1 if len(filled) else 0, np.int64)
        dense[filled] = counts
        return cls(dense)


def bucket_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each of ``values``, int64 (values,), each from 0 to below 2^53."""
    octave = np.maximum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - _BITS - 1, 0)  # exact below 2^53
    buckets: NDArray[np.int64] = octave * _PER_OCTAVE + (values >> octave)
    return buckets


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the smallest value of ``bucket``, and the smallest value of the next one."""
    octave = max(bucket // _PER_OCTAVE - 1, 0)
    leading = bucket - octave * _PER_OCTAVE
    return leading << octave, (leading + 1) << octave
