"""Groups of documents that share many sequences of words, found by the smallest hashes of each document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.data.shingles import folded, shingles_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

VERSION = 2
"""Raise it when the same documents get other groups."""
SKETCH = 64
_WORDS = 5
_SIMILARITY = 0.2
_NONE = np.uint64(2**64 - 1)
_PAIRS = 2048  # that are compared at a time


def sketches_of(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return the 64 smallest hashes of the sequences of five words in each text, uint64 (texts, 64), ascending.

    A text with fewer of them has the largest number in place of the others. Capital letters and punctuation do not
    count. Equal shares of the smallest hashes estimate the Jaccard similarity of the sets of sequences (Broder: On the
    resemblance and containment of documents, 1997).
    """
    hashes, offsets = shingles_of([folded(text) for text in texts], _WORDS)
    found = np.full((len(texts), SKETCH), _NONE)
    for number, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        own = hashes[begin:end]
        share = 4 * SKETCH / len(own)
        least = np.unique(own[own < np.uint64(share * 2**63) * np.uint64(2)] if share < 1 else own)
        if len(least) < SKETCH:  # many repetitions
            least = np.unique(own)
        found[number, : min(SKETCH, len(least))] = least[:SKETCH]
    return found


def groups_of(sketches: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of the first document of each document's group, int64 (documents,).

    Two documents are in one group if their similarity is about 0.2 or more, and so are all that others connect.
    Documents are compared with the next ones that share a hash, so the time grows with their number, not its square.
    Other orders of the documents may thus give other groups: give them in one that does not depend on their places.
    """
    parents = list(range(len(sketches)))
    for first, second in _similar_pairs(sketches):
        one, other = _root(parents, first), _root(parents, second)
        parents[max(one, other)] = min(one, other)
    return np.array([_root(parents, number) for number in range(len(parents))], np.int64)


def _root(parents: list[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = number = parents[parents[number]]
    return number


def _similar_pairs(sketches: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of similar documents among those that are neighbors in the order of a hash that they share."""
    values = sketches.reshape(-1)
    places = np.argsort(values, kind="stable")  # documents ascend among equal hashes
    values = values[places]
    shares = np.flatnonzero((values[1:] == values[:-1]) & (values[1:] != _NONE))
    documents = places // sketches.shape[1]
    pairs = np.unique(documents[shares] * len(sketches) + documents[shares + 1])
    for begin in range(0, len(pairs), _PAIRS):
        first, second = np.divmod(pairs[begin : begin + _PAIRS], len(sketches))
        is_similar = _similarities(sketches[first], sketches[second]) >= _SIMILARITY
        yield from zip(first[is_similar].tolist(), second[is_similar].tolist(), strict=True)


def _similarities(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the share of the smallest hashes of both documents of each pair that are in both, float64 (pairs,)."""
    both = np.sort(np.concatenate([one, other], 1), 1)
    is_repeated = np.zeros(both.shape, np.bool_)
    is_repeated[:, 1:] = both[:, 1:] == both[:, :-1]
    is_new = ~is_repeated & (both != _NONE)
    ranks = np.cumsum(is_new, 1)
    shared = (is_repeated & (both != _NONE) & (ranks <= one.shape[1])).sum(1)
    similarities: NDArray[np.float64] = shared / np.minimum(ranks[:, -1], one.shape[1])
    return similarities
