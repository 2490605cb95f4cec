"""Groups of documents that share many sequences of words, found by the smallest hashes of each document."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.data.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Shingles = Callable[[int], NDArray[np.uint32]]

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
    sketches = np.full((len(texts), SKETCH), _NONE)
    for number, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        own = hashes[begin:end]
        share = 4 * SKETCH / len(own)
        least = np.unique(own[own < np.uint64(share * 2**63) * np.uint64(2)] if share < 1 else own)
        if len(least) < SKETCH:  # many repetitions
            least = np.unique(own)
        sketches[number, : min(SKETCH, len(least))] = least[:SKETCH]
    return sketches


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


_MOST_COMPARED = 64
_PART_BITS = 4
_PARTS = 1 << _PART_BITS


@dataclass(frozen=True, eq=False)
class Repetitions:
    """Documents that are left out, and for each the earlier document that stays in its place.

    Documents are numbered from 0 in the order of source, unit and position. ``repeated`` is int64 (left out,),
    ascending; ``survivors`` is int64 of the same length, and no survivor is left out.
    """

    repeated: NDArray[np.int64]
    survivors: NDArray[np.int64]


def normalized(text: str) -> str:
    """Return ``text`` in lower case, in Unicode's form NFC, with each run of white space as one space.

    White space is what ``str.split`` splits at; there is none at the start or the end of the result.
    """
    return " ".join(folded(text).split())


def text_digests(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return 128 bits of the SHA-256 of each text, uint64 (2, texts).

    With 128 bits, 10**12 different documents have two equal digests with a probability of 1.5e-15.
    """
    digests = b"".join(sha256(text.encode("utf-8", "surrogatepass")).digest()[:16] for text in texts)
    return np.frombuffer(digests, "<u8").reshape(-1, 2).T.astype(np.uint64)


def equal_documents(
    first_words: NDArray[np.uint64], second_words: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
) -> Repetitions:
    """Return the documents whose digest an earlier document has; the first of them stays.

    ``first_words`` is uint64 (documents,), the first half of the digests; ``second_words`` returns the second half of
    the documents of the given ascending numbers.
    """
    repeated, survivors = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for members, first in _not_unique(first_words):
        ascending = np.sort(members)
        second = second_words(ascending)[np.searchsorted(ascending, members)]
        order = np.lexsort((second, first))  # stable, so that numbers ascend among equal digests
        numbers, words = members[order], np.stack([first[order], second[order]])
        is_new = np.ones(len(numbers), np.bool_)
        is_new[1:] = (words[:, 1:] != words[:, :-1]).any(0)
        survivors.append(numbers[is_new][np.cumsum(is_new) - 1][~is_new])
        repeated.append(numbers[~is_new])
    del first_words
    return _ordered(repeated, survivors)


def _ordered(repeated: list[NDArray[np.int64]], survivors: list[NDArray[np.int64]]) -> Repetitions:
    """Join both in ascending order; the lists are emptied, so that at most 32 bytes a number are in use."""
    joined, staying = np.concatenate(repeated), np.concatenate(survivors)
    repeated.clear()
    survivors.clear()
    order = np.argsort(joined)
    joined = joined[order]
    staying = staying[order]
    return Repetitions(joined, staying)


def similar_documents(bands: Iterable[NDArray[np.uint64]], shingles: Shingles, threshold: float) -> Repetitions:
    """Return the documents with an earlier document of at least this Jaccard similarity.

    ``bands`` yields the keys of one band of all documents, uint64 (documents,), at least once. Documents with the same
    key in a band are compared by their ``shingles``, uint32 without repetitions; a document is compared with the first
    64 of those at most. Whether a document is left out depends on it and on earlier documents only, so that documents
    that are added at the end change nothing before them.
    """
    originals: NDArray[np.int64] | None = None
    for keys in bands:
        if originals is None:
            originals = np.full(len(keys), -1, np.int64)
        for members, own in _not_unique(keys):
            for bucket in np.split(members, np.flatnonzero(own[1:] != own[:-1]) + 1) if len(members) else ():
                _compare(bucket, originals, shingles, threshold)
        del keys  # before the next band is loaded
    assert originals is not None, "there are no bands"
    repeated = np.flatnonzero(originals >= 0)
    survivors = originals[repeated]
    while len(later := np.flatnonzero(originals[survivors] >= 0)):
        survivors[later] = originals[survivors[later]]
    return Repetitions(repeated, survivors)


def _compare(bucket: NDArray[np.int64], originals: NDArray[np.int64], shingles: Shingles, threshold: float) -> None:
    numbers = bucket.tolist()
    for place, number in enumerate(numbers):
        if originals[number] >= 0:
            continue
        own = shingles(number)
        for earlier in numbers[: min(place, _MOST_COMPARED)]:
            other = shingles(earlier)
            # the similarity is at most the quotient of the sizes
            if min(len(own), len(other)) >= threshold * max(len(own), len(other)) and jaccard(own, other) >= threshold:
                originals[number] = earlier
                break


def _not_unique(keys: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Yield the numbers of the documents whose key another document has too, ordered by key and number, and their keys.

    A sixteenth of the keys is taken at a time, by their first bits, so that the memory is a few bytes a document.
    """
    for part in range(_PARTS):
        least = part << 64 - _PART_BITS
        most = least | (1 << 64 - _PART_BITS) - 1
        numbers = np.flatnonzero((keys >= np.uint64(least)) & (keys <= np.uint64(most)))
        order = np.argsort(keys[numbers], kind="stable")
        numbers = numbers[order]
        own = keys[numbers]
        is_next_equal = own[1:] == own[:-1]
        is_member = np.zeros(len(own), np.bool_)
        is_member[1:] |= is_next_equal
        is_member[:-1] |= is_next_equal
        yield numbers[is_member], own[is_member]


_RECALL = 0.95
_SLICE = 1 << 18  # characters that are hashed at a time; a word on the border between two slices counts as two words
_CODES = 1 << 17  # of characters in the tables; almost all others are Chinese
_LONGEST_WORD = 1 << 12  # after which the factors of a word's hash begin anew
_FACTOR = 0x9E3779B97F4A7C15

# Thai, Lao, Myanmar, Khmer, Japanese and Chinese have no spaces: each character counts as a word
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF))
_PART_OF_WORD, _WORD = 1, 2  # classes of characters; 0 is no part of a word


def folded(text: str) -> str:
    """Return ``text`` in lower case and in Unicode's form NFC; the white space stays as it is."""
    lower = text.lower()
    return lower if lower.isascii() else unicodedata.normalize("NFC", lower)


def shingles_of(texts: Sequence[str], ngram: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of all sequences of ``ngram`` words of the texts, uint64 (sequences,), and offsets, int64.

    Those of text ``i`` are ``hashes[offsets[i] : offsets[i + 1]]``, at least one, in the order of the text, with
    repetitions. A word is a run of letters, digits, marks and underscores; in scripts without spaces it is a single
    character. Punctuation does not count. A text with fewer words is one sequence, and a text without words is a word.
    """
    words, counts = _words_of(texts)
    padded = np.maximum(counts, ngram)
    starts = np.cumsum(padded) - padded
    filled = np.zeros(padded.sum(), np.uint64)
    filled[_ranges(starts, counts)] = words
    for number in np.flatnonzero(counts == 0).tolist():
        filled[starts[number]] = _hash_of(texts[number])
    sizes = padded - ngram + 1
    joined = np.zeros(max(0, len(filled) - ngram + 1), np.uint64)
    for offset in range(ngram):
        joined *= np.uint64(_FACTOR)
        joined += filled[offset : offset + len(joined)]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return mix(joined[_ranges(starts, sizes)]), offsets


def distinct(hashes: NDArray[np.uint64], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the first halves of the hashes of each text without repetitions, and how many there are of each, int64.

    Within two texts of 1,000 sequences each, half of a hash gives 0.0002 false equalities on average.
    """
    texts = np.repeat(np.arange(len(offsets) - 1, dtype=np.uint64), np.diff(offsets))
    keys = np.sort((texts << np.uint64(32)) | (hashes >> np.uint64(32)))
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = keys[1:] != keys[:-1]
    keys = keys[is_new]
    sizes = np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=len(offsets) - 1)
    return keys.astype(np.uint32), sizes.astype(np.int64)


def _words_of(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the words of all texts, uint64 (words,), and the number of words in each, int64."""
    if sum(map(len, texts)) <= _SLICE:
        return _hashed_words(texts)
    hashes, counts = [np.zeros(0, np.uint64)], []
    for text in texts:
        slices = [_hashed_words([text[start : start + _SLICE]])[0] for start in range(0, len(text), _SLICE)]
        hashes += slices
        counts.append(sum(map(len, slices)))
    return np.concatenate(hashes), np.array(counts, np.int64)


def _hashed_words(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    # all characters at once: a word's hash is the sum of its characters' values times factors of their places in it
    joined = "".join(f"{text}\n" for text in texts)
    classes, values, factors = _tables()
    if joined.isascii():
        low = np.frombuffer(joined.encode("ascii"), np.uint8)
        kinds = classes[low]
    else:
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), "<u4")
        low = codes & np.uint32(_CODES - 1)
        kinds = np.where(codes < _CODES, classes[low], np.uint8(_WORD))
    continues = np.zeros(len(low), np.bool_)
    continues[1:] = (kinds[1:] == _PART_OF_WORD) & (kinds[:-1] == _PART_OF_WORD)
    is_part = kinds > 0
    begins = is_part & ~continues
    starts = np.flatnonzero(begins)
    ends_of_texts = np.cumsum([len(text) + 1 for text in texts]) if texts else np.zeros(0, np.int64)
    counts = np.diff(np.searchsorted(starts, ends_of_texts), prepend=0)
    if not len(starts):
        return np.zeros(0, np.uint64), counts
    places = np.arange(len(low), dtype=np.int32)
    places -= np.maximum.accumulate(np.where(begins, places, np.int32(0)))
    places &= _LONGEST_WORD - 1
    terms = values[low]
    terms *= factors[places]
    terms *= is_part
    return mix(np.add.reduceat(terms, starts)), counts


@cache
def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the class and the value of each character below ``_CODES``, and the factor of each place in a word."""
    characters = map(chr, range(_CODES))
    parts = [each.isalnum() or each == "_" or unicodedata.category(each)[0] == "M" for each in characters]
    classes = np.array(parts, np.uint8) * np.uint8(_PART_OF_WORD)
    for first, last in _UNSPACED:
        classes[first : last + 1] *= np.uint8(_WORD)
    values = mix(np.arange(1, _CODES + 1, dtype=np.uint64))
    factors: NDArray[np.uint64] = np.multiply.accumulate(np.full(_LONGEST_WORD, _FACTOR, np.uint64))
    return classes, values, factors


def _ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers from each of ``starts`` on, as many as ``sizes`` says, int64 (sum of sizes,)."""
    shifts = starts - (np.cumsum(sizes) - sizes)
    numbers = np.arange(sizes.sum(), dtype=np.int64)
    numbers += np.repeat(shifts, sizes)
    return numbers


def _hash_of(text: str) -> int:
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")


def choose_bands(threshold: float, permutations: int) -> int:
    """Return the number of bands whose rows are the most that still find 95 % of the pairs at the ``threshold``.

    More rows mean fewer pairs that are compared in vain. Rows are ``permutations`` // bands.
    """
    for rows in range(permutations, 1, -1):
        if found_share(threshold, permutations // rows, rows) >= _RECALL:
            return permutations // rows
    return permutations


def found_share(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that two documents of this Jaccard similarity agree in at least one band.

    Leskovec, Rajaraman, Ullman: Mining of Massive Datasets, section 3.4.2.
    """
    return 1.0 - (1.0 - similarity**rows) ** bands


def band_keys(signatures: NDArray[np.uint32], bands: int) -> NDArray[np.uint64]:
    """Return the hash of each band of MinHash ``signatures``, uint64 (bands, documents).

    ``signatures`` are uint32 (documents, permutations); a band is permutations // ``bands`` neighbouring values.
    """
    rows = signatures.shape[1] // bands
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).transpose(1, 0, 2)
    keys = np.zeros((bands, len(signatures)), np.uint64)
    for row in range(rows):
        keys = mix(keys ^ values[:, :, row])
    return keys


def jaccard(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> float:
    """Return the Jaccard similarity of two sets, each a uint32 array (values,) without repetitions, not both empty."""
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)
