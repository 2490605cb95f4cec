"""Packing documents into rows."""

from __future__ import annotations

from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking, packing_key
from holdfast.domain.errors import ConfigurationError

OVERFLOWS = ("split", "truncate", "drop")


@st.composite
def documents(draw):
    """Draw documents in a flat array: some empty, some long, perhaps with gaps between them and in another order."""
    sizes = draw(st.lists(st.integers(0, 30), max_size=40))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    places = np.cumsum(np.array([0, *(np.array(sizes, np.int64) + gaps)]))[:-1]
    order = np.array(draw(st.permutations(range(len(sizes)))), np.int64)
    return places[order].astype(np.int64), np.array(sizes, np.int64)[order]


lengths = st.integers(1, 12)
overflows = st.sampled_from(OVERFLOWS)
whole_packings = st.builds(ConcatPacking, lengths, overflows) | st.builds(
    BestFitPacking, lengths, overflows, window=st.integers(1, 50)
)
sliding_packings = lengths.flatmap(lambda length: st.builds(SlidingPacking, st.just(length), st.integers(1, length)))


def tokens_of(starts, sizes):
    return [
        place
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        for place in range(start, start + size)
    ]


def rows_of(index):
    """Return each row's pieces as (start, length)."""
    pieces = list(zip(index.starts.tolist(), index.lengths.tolist(), strict=True))
    return [pieces[first:last] for first, last in zip(index.rows[:-1], index.rows[1:], strict=True)]


def kept_tokens(packing, starts, sizes):
    """Return what the overflow policy lets through, in order, computed document by document."""
    if packing.overflow == "truncate":
        sizes = np.array([min(size, packing.length) for size in sizes], np.int64)
    if packing.overflow == "drop":
        sizes = np.array([size if size <= packing.length else 0 for size in sizes], np.int64)
    return tokens_of(starts, sizes)


@settings(deadline=None)
@given(documents=documents(), packing=whole_packings | sliding_packings)
def test_no_token_is_lost_or_repeated_unsaid(documents, packing):
    """Tokens in are tokens out, less the repeated, plus the dropped ones."""
    packed = packing(*documents)
    assert documents[1].sum() == packed.index.num_tokens - packed.repeated + packed.dropped
    assert packed.dropped >= 0
    assert packed.repeated >= 0


@settings(deadline=None)
@given(documents=documents(), packing=whole_packings | sliding_packings)
def test_rows_are_pieces_of_documents(documents, packing):
    """No row is empty or longer than asked for, and each piece lies within one document; all arrays are int64."""
    index = packing(*documents).index
    assert {array.dtype for array in (index.starts, index.lengths, index.rows)} == {np.dtype(np.int64)}
    assert index.rows[0] == 0
    assert index.rows[-1] == len(index.starts)
    owner = {
        place: number for number, each in enumerate(zip(*documents, strict=True)) for place in range(each[0], sum(each))
    }
    for row in rows_of(index):
        assert 0 < sum(size for _, size in row) <= packing.length
        for start, size in row:
            assert size > 0
            assert len({owner[place] for place in range(start, start + size)}) == 1


@settings(deadline=None)
@given(documents=documents(), packing=whole_packings)
def test_what_overflow_lets_through_comes_once(documents, packing):
    """Every token of documents that fit comes once; of longer ones all, the first, or none, as overflow says."""
    packed = packing(*documents)
    assert sorted(tokens_of(packed.index.starts, packed.index.lengths)) == sorted(kept_tokens(packing, *documents))
    assert packed.repeated == 0


@settings(deadline=None)
@given(documents=documents(), packing=st.builds(ConcatPacking, lengths, overflows))
def test_concatenation_keeps_the_order_and_fills_rows(documents, packing):
    """Rows hold the documents in order, all but the last row are full, and no document is cut but at a row's end."""
    index = packing(*documents).index
    assert tokens_of(index.starts, index.lengths) == kept_tokens(packing, *documents)
    sizes = [sum(size for _, size in row) for row in rows_of(index)]
    assert all(size == packing.length for size in sizes[:-1])
    num_documents = sum(1 for size in documents[1] if size and (packing.overflow != "drop" or size <= packing.length))
    assert len(index.starts) <= num_documents + max(0, index.num_rows - 1)


def naive_best_fit(sizes, length):
    """Return the sizes of the rows that best-fit decreasing makes, computed as the textbook says."""
    rows = []
    for size in sorted(sizes, reverse=True):
        fullest = max((row for row in rows if row + size <= length), default=None)
        if fullest is not None:
            rows.remove(fullest)
        rows.append((fullest or 0) + size)
    return sorted(rows)


@settings(deadline=None)
@given(documents=documents(), length=lengths, overflow=overflows)
def test_best_fit_is_the_textbooks(documents, length, overflow):
    """In one window the rows are as full as those of best-fit decreasing, done piece by piece."""
    packing = BestFitPacking(length, overflow)
    pieces = []
    for size in documents[1].tolist():
        whole, rest = divmod(size, length)
        if overflow == "split":
            pieces += [length] * whole + [rest] * (rest > 0)
        elif size <= length or overflow == "truncate":
            pieces += [min(size, length)] * (size > 0)
    rows = rows_of(packing(*documents).index)
    assert sorted(sum(size for _, size in row) for row in rows) == naive_best_fit(pieces, length)


@settings(deadline=None)
@given(documents=documents(), packing=st.builds(BestFitPacking, lengths, overflows, window=st.integers(1, 10)))
def test_windows_are_packed_by_themselves(documents, packing):
    """Packing window after window gives the rows of packing all at once, so a reader may do either."""
    starts, sizes = documents
    apart = [
        row
        for begin in range(0, len(sizes), packing.window)
        for row in rows_of(packing(starts[begin : begin + packing.window], sizes[begin : begin + packing.window]).index)
    ]
    assert rows_of(packing(starts, sizes).index) == apart


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 30), max_size=40), length=lengths, overflow=overflows)
def test_best_fit_rows_follow_their_first_documents(sizes, length, overflow):
    """Rows, and the pieces in each, are in the order of the documents, not of their lengths."""
    sizes = np.array(sizes, np.int64)
    rows = rows_of(BestFitPacking(length, overflow)(np.cumsum(sizes) - sizes, sizes).index)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert all(row == sorted(row) for row in rows)


@pytest.mark.parametrize("length", [1024, 2048, 8192])
def test_best_fit_leaves_little_empty(length):
    """Of lognormal documents over 99 % of the rows' places hold a token."""
    sizes = np.random.default_rng(0).lognormal(6, 1.2, 20_000).astype(np.int64) + 1
    index = BestFitPacking(length)(np.cumsum(sizes) - sizes, sizes).index
    assert index.num_tokens == sizes.sum()
    assert index.num_tokens > 0.99 * index.num_rows * length


@settings(deadline=None)
@given(documents=documents(), packing=sliding_packings)
def test_windows_slide_over_each_document(documents, packing):
    """A document's windows are a stride apart, each a row, until one of them ends with the document."""
    expected = []
    for start, size in zip(*(array.tolist() for array in documents), strict=True):
        begin = 0
        while size:
            expected.append([(start + begin, min(packing.length, size - begin))])
            if begin + packing.length >= size:
                break
            begin += packing.stride
    packed = packing(*documents)
    assert rows_of(packed.index) == expected
    assert packed.dropped == 0


def test_rows_by_hand():
    """Documents of three, nine and four tokens in rows of five."""
    sizes = np.array([3, 9, 4])
    starts = np.array([0, 3, 12])
    concat = ConcatPacking(5)(starts, sizes)
    assert rows_of(concat.index) == [[(0, 3), (3, 2)], [(5, 5)], [(10, 2), (12, 3)], [(15, 1)]]
    best = BestFitPacking(7)(starts, sizes)
    assert rows_of(best.index) == [[(0, 3), (12, 4)], [(3, 7)], [(10, 2)]]
    truncated = BestFitPacking(7, "truncate")(starts, sizes)
    assert rows_of(truncated.index) == [[(0, 3), (12, 4)], [(3, 7)]]
    assert truncated.dropped == 2
    sliding = SlidingPacking(5, 3)(starts, sizes)
    assert rows_of(sliding.index) == [[(0, 3)], [(3, 5)], [(6, 5)], [(9, 3)], [(12, 4)]]
    assert sliding.repeated == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ConcatPacking(0), "a row cannot hold 0 tokens"),
        (lambda: BestFitPacking(-1), "a row cannot hold -1 tokens"),
        (lambda: SlidingPacking(0, 1), "a row cannot hold 0 tokens"),
        (lambda: ConcatPacking(4, "cut"), "overflow is 'cut'"),
        (lambda: BestFitPacking(4, "cut"), "overflow is 'cut'"),
        (lambda: BestFitPacking(4, window=0), "cannot look at 0 documents"),
        (lambda: SlidingPacking(4, 5), "leaves gaps"),
        (lambda: SlidingPacking(4, 0), "does not advance"),
    ],
)
def test_impossible_packings_are_refused(make, words):
    """Rows without room, an unknown overflow, and windows that do not advance or leave gaps are refused."""
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_each_packing_has_a_key_of_its_own():
    """What is kept under a packing's key is found by that packing alone, in later versions too."""
    packings = [
        *(ConcatPacking(length, overflow) for length, overflow in product((4, 5), OVERFLOWS)),
        *(BestFitPacking(length, overflow, window) for length, overflow, window in product((4, 5), OVERFLOWS, (9, 10))),
        *(SlidingPacking(*each) for each in ((4, 2), (4, 3), (5, 3))),
    ]
    assert len({packing_key(packing) for packing in packings}) == len(packings)
    assert packing_key(ConcatPacking(4)) == "concat.1,length=4,overflow=split"
    assert packing_key(BestFitPacking(4)) == "best_fit.1,length=4,overflow=split,window=10000"
    assert packing_key(SlidingPacking(4, 2)) == "sliding.1,length=4,stride=2"


def test_rows_are_those_of_earlier_versions():
    """Rows that were derived once are the ones a later version derives, while the key's version stands."""
    sizes = np.arange(1, 3000) * 7919 % 700
    digests = []
    for packing in (ConcatPacking(256, "drop"), BestFitPacking(256, "split", 1000), SlidingPacking(256, 100)):
        index = packing(np.cumsum(sizes) - sizes, sizes).index
        arrays = np.concatenate([index.starts, index.lengths, index.rows])
        digests.append(sha256(arrays.astype("<i8").tobytes()).hexdigest()[:16])
    assert digests == ["7e6a8b2c535be786", "ccee376d7439c24b", "d8aa9b1db011ddc5"]
