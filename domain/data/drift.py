"""Drift between two profiles: the figures that moved, and how far."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.domain.data.profile import LENGTHS, RATIOS, SHARES
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.frequent_tokens import FrequentTokens
    from holdfast.domain.data.profile import LogHistogram, Profile

FEWEST = 64
"""The number of documents, in each profile, below which no figure is judged."""

FEWEST_FOR_TOKENS = 128
"""The number of documents, in each profile, below which the frequent tokens are not judged: half are counted."""

OF_TOKENS = ("tokens", "bytes_per_token", "frequent_tokens")
"""The figures that depend on the tokenizer, so that profiles by different tokenizers cannot be compared by them."""

_BINS = 10
_DEVIATIONS = 4.0  # of a chi-square, normal by Wilson and Hilferty: exceeded by chance once in 30,000 comparisons
_MULTIPLE = 3.0  # of the Jensen-Shannon divergence that sampling explains
_CUTS = 4  # times the occurrences of a token that may be missing, below which its share is too uncertain
_FEWEST_TOKENS = 40  # occurrences of a token in both samples of both profiles, so that its share is known roughly


class Level(StrEnum):
    """The verdict on a figure, from no drift to major drift."""

    NONE = "none"
    MINOR = "minor"
    MAJOR = "major"


class Measure(StrEnum):
    """A distance between two distributions; ``LIMITS`` has the values from which it means minor and major drift."""

    PSI = "PSI"
    JENSEN_SHANNON = "JS"


LIMITS: Mapping[Measure, tuple[float, float]] = {Measure.PSI: (0.1, 0.25), Measure.JENSEN_SHANNON: (0.005, 0.025)}
"""The smallest distances of minor and of major drift.

0.1 and 0.25 are the usual limits of the population stability index. If a share s of the reference is replaced by names
that the reference lacks, the Jensen-Shannon divergence is about s / 2 bits: 0.005 means 1 % and 0.025 means 5 % of the
documents of another language. Frequent tokens move less, as the rare tokens of the other documents are not counted: one
tenth of the documents in another language give about 0.01.
"""


LABELS: Mapping[str, str] = {
    "tokens": "tokens a document",
    "bytes": "bytes a document",
    "bytes_per_token": "bytes a token",
    "letters": "share of letters",
    "digits": "share of digits",
    "spaces": "share of whitespace",
    "symbols": "share of symbols",
    "non_ascii": "share of non-ASCII bytes",
    "frequent_tokens": "frequent tokens",
    "languages": "languages",
}
"""The names of the figures for a person."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The comparison of one figure.

    ``before`` and ``after`` are the medians in the reference and in the other profile, or for a distribution over names
    the shares of the ``name`` that moved most. ``distance`` is their distance by ``measure``, less the distance that
    two samples of the same documents would have on average; ``noise`` is the largest that such samples would have
    before this is subtracted. ``moved`` names the token or the language whose share changed most, None for medians.
    """

    name: str
    measure: Measure
    before: float
    after: float
    distance: float
    noise: float
    level: Level
    moved: str | None = None


def compare(reference: Profile, other: Profile, *, has_same_tokens: bool = True) -> list[Figure]:
    """Return the comparison of each figure that both profiles have, the figures in a fixed order.

    Unless both have the same tokens, the figures ``OF_TOKENS`` are left out. A figure has drifted if its distance
    exceeds that of two random samples of the same documents, and the limits of its measure. With fewer than ``FEWEST``
    documents in a profile, no figure has.
    """
    names = [name for name in (*LENGTHS, *RATIOS, *SHARES) if has_same_tokens or name not in OF_TOKENS]
    names = [name for name in names if _is_in(reference, name) and _is_in(other, name)]
    figures = [_of_histograms(name, reference, other) for name in names]
    if has_same_tokens and (figure := _of_tokens(reference, other)) is not None:
        figures.append(figure)
    if reference.languages and other.languages:
        figures.append(_of_languages(reference, other))
    return figures


def sentence_of(figures: Sequence[Figure]) -> str:
    """Return the verdict on ``figures`` as one sentence: the figures that drifted, or that none did."""
    level = worst(figures)
    moved = [figure for figure in figures if figure.level != Level.NONE]
    if not moved:
        return f"no drift in {counted(len(figures), 'figure')}"
    moved.sort(key=lambda figure: figure.level != Level.MAJOR)
    named = (f"{LABELS[each.name]} ({each.level}, {each.measure} {each.distance:.3f})" for each in moved)
    return f"{level} drift: {', '.join(named)}"


def worst(figures: Sequence[Figure]) -> Level:
    """Return the highest level of ``figures``."""
    return max((figure.level for figure in figures), key=[*Level].index, default=Level.NONE)


def _is_in(profile: Profile, name: str) -> bool:
    return name in profile.histograms and profile.histograms[name].total > 0


def _are_enough(*profiles: Profile) -> bool:
    return all(profile.documents >= FEWEST for profile in profiles)


def _of_histograms(name: str, reference: Profile, other: Profile) -> Figure:
    """Compare by PSI over bins that each hold about a tenth of the reference."""
    ours, theirs = reference.histograms[name], other.histograms[name]
    before, after = _in_bins(ours, theirs)
    shares = [(each + 0.5) / (each + 0.5).sum() for each in (before, after)]  # no share is 0, so the sum is finite
    value = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    scale, degrees = 1 / ours.total + 1 / theirs.total, len(before) - 1
    first, second = (profile.quantile(name, 0.5) or 0.0 for profile in (reference, other))
    noise = _chi_square(degrees) * scale
    return _judged(
        Figure(name, Measure.PSI, first, second, value - degrees * scale, noise, Level.NONE),
        value,
        is_enough=_are_enough(reference, other) and min(ours.total, theirs.total) >= FEWEST // 4,
    )


def _in_bins(reference: LogHistogram, other: LogHistogram) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the counts of both in bins of neighbouring buckets, each of about a tenth of ``reference``."""
    length = max(len(reference.counts), len(other.counts))
    counts = np.zeros((2, length), np.int64)
    for row, histogram in enumerate((reference, other)):
        counts[row, : len(histogram.counts)] = histogram.counts
    upto = np.cumsum(counts[0])
    bins = min(_BINS, max(2, min(reference.total, other.total) // 10))
    cuts = np.searchsorted(upto, [upto[-1] * each / bins for each in range(1, bins)]) + 1
    edges = np.unique(np.concatenate([[0], cuts[cuts < length]]))
    binned = np.add.reduceat(counts, edges, axis=1)
    return binned[0], binned[1]


def _chi_square(degrees: int) -> float:
    """Return a value that a chi-square of ``degrees`` hardly ever exceeds."""
    if not degrees:
        return 0.0
    part = 2 / (9 * degrees)
    return degrees * float((1 - part + _DEVIATIONS * math.sqrt(part)) ** 3)


def _of_tokens(reference: Profile, other: Profile) -> Figure | None:
    """Compare the shares of the most frequent tokens; those that are too rare to compare are taken together.

    If shards left a token out, the share that is nearest to that in the other profile is assumed.
    """
    profiles = (reference.frequent, other.frequent)
    totals = np.array([each.total for each in profiles])[:, None]
    ids = np.union1d(*(each.ids for each in profiles))
    found, missed = zip(*(each.of_ids(ids) for each in profiles), strict=True)
    both = np.array([counts.sum(axis=0) for counts in found])
    fewest = max(_FEWEST_TOKENS, *(_CUTS * each.cut for each in profiles))
    kept = np.flatnonzero(both.sum(axis=0) >= fewest)
    if not len(kept) or not all(min(each.totals) for each in profiles):
        return None
    shares = both[:, kept] / totals
    shares = np.minimum(np.maximum(shares, shares[::-1]), shares + np.array(missed)[:, kept] / totals)
    whole = [np.append(each, max(1 - each.sum(), 0.0)) for each in shares]
    value = _jensen_shannon(whole[0], whole[1])
    noise: float = sum(_noise_of(each, counts[:, kept]) for each, counts in zip(profiles, found, strict=True))
    place = int(np.abs(shares[1] - shares[0]).argmax())
    figure = Figure(
        "frequent_tokens",
        Measure.JENSEN_SHANNON,
        float(shares[0, place]),
        float(shares[1, place]),
        value - noise,
        _MULTIPLE * noise,
        Level.NONE,
        str(ids[kept[place]]),
    )
    return _judged(figure, value, is_enough=min(reference.documents, other.documents) >= FEWEST_FOR_TOKENS)


def _noise_of(tokens: FrequentTokens, samples: NDArray[np.int64]) -> float:
    """Return the part of the divergence from another profile that the choice of these documents explains on average.

    ``samples`` is int64 (2, tokens): the counts of some of the ``tokens`` in their two samples. The divergence of two
    samples of n and m tokens is c / n + c / m on average, so theirs gives c. It is larger than that of independent
    tokens, as a document repeats its tokens.
    """
    rest = np.array(tokens.totals) - samples.sum(axis=1)
    first, second = np.column_stack([samples, rest])
    independent = samples.shape[1] / (8 * math.log(2) * tokens.total)
    scale = sum(tokens.total / total for total in tokens.totals)
    explained: float = max(_jensen_shannon(first, second) / scale, independent)
    return explained


def _of_languages(reference: Profile, other: Profile) -> Figure:
    names = sorted({*reference.languages, *other.languages})
    counts = [np.array([each.languages.get(name, 0) for name in names]) for each in (reference, other)]
    totals = [int(each.sum()) for each in counts]
    value = _jensen_shannon(*counts)
    scale, degrees = (1 / totals[0] + 1 / totals[1]) / (8 * math.log(2)), len(names) - 1
    shares = [each / each.sum() for each in counts]
    place = int(np.abs(shares[1] - shares[0]).argmax())
    figure = Figure(
        "languages",
        Measure.JENSEN_SHANNON,
        float(shares[0][place]),
        float(shares[1][place]),
        value - degrees * scale,
        _chi_square(degrees) * scale,
        Level.NONE,
        names[place],
    )
    return _judged(figure, value, is_enough=_are_enough(reference, other))


def _jensen_shannon(before: NDArray[Any], after: NDArray[Any]) -> float:
    """Return the divergence of two distributions, counts or shares (names,), in bits, from 0 to 1."""
    first, second = before / before.sum(), after / after.sum()
    middle = (first + second) / 2
    parts = []
    for each in (first, second):
        there = each > 0
        parts.append((each[there] * np.log2(each[there] / middle[there])).sum())
    return float(sum(parts) / 2)


def _judged(figure: Figure, value: float, *, is_enough: bool) -> Figure:
    """Return ``figure`` with its level; ``value`` is the distance of the two profiles as measured."""
    minor, major = LIMITS[figure.measure]
    distance = max(figure.distance, 0.0)
    level = Level.NONE
    if is_enough and value > figure.noise and distance >= minor:
        level = Level.MAJOR if distance >= major else Level.MINOR
    return replace(figure, distance=distance, level=level)
