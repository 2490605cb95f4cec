"""Reading rows of packed documents."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.loss_mask import PackedLossMask, pack_mask
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking
from holdfast.domain.data.row_index import NO_ROW, RowIndex, read_rows

LENGTH = 8
packings = st.sampled_from([ConcatPacking(LENGTH), BestFitPacking(LENGTH), SlidingPacking(LENGTH, 3)])


@st.composite
def packed_shards(draw):
    """Draw some shards, each as token ids that are all different, their loss mask or none, and their rows."""
    shards = []
    for number in range(draw(st.integers(1, 3))):
        sizes = np.array(draw(st.lists(st.integers(1, 20), min_size=1, max_size=15)))
        ids = np.arange(sizes.sum(), dtype=draw(st.sampled_from([np.uint16, np.uint32]))) + 1000 * number + 1
        mask = draw(st.one_of(st.none(), arrays(np.bool_, len(ids))))
        mask = PackedLossMask(pack_mask(mask), len(mask)) if mask is not None and draw(st.booleans()) else mask
        shards.append((ids, mask, draw(packings)(np.cumsum(sizes) - sizes, sizes).index))
    return shards


def by_hand(values, index, number):
    """Return a row's pieces as lists of ids, or of what else there is of each id."""
    first, last = index.rows[number : number + 2]
    pieces = zip(index.starts[first:last], index.lengths[first:last], strict=True)
    return [values[start : start + size].tolist() for start, size in pieces]


@settings(deadline=None)
@given(shards=packed_shards(), data=st.data())
def test_rows_are_read_from_wherever_they_lie(shards, data):
    """Rows of any shards, in any order and as often as asked for, are their pieces end to end, padded with 0."""
    known = [(*shard, row) for shard in shards for row in range(shard[-1].num_rows)]
    places = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=12))
    batch = read_rows(places, LENGTH)
    assert batch.input_ids.dtype == batch.starts.dtype == batch.row_lengths.dtype == np.int64
    starts = []
    for row, (ids, _, index, number) in enumerate(places):
        pieces = by_hand(ids, index, number)
        tokens = [token for piece in pieces for token in piece]
        assert batch.input_ids[row].tolist() == tokens + [0] * (LENGTH - len(tokens))
        assert batch.row_lengths[row] == len(tokens)
        starts += [row * LENGTH + sum(map(len, pieces[:number])) for number in range(len(pieces))]
    assert batch.starts.tolist() == starts


@settings(deadline=None)
@given(shards=packed_shards(), data=st.data())
def test_each_token_keeps_its_loss_mask(shards, data):
    """A token of a cut row is a target if its shard trains on it, or on all, and it is not the first of its piece."""
    known = [(*shard, row) for shard in shards for row in range(shard[-1].num_rows)]
    places = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=12))
    batch = read_rows(places, LENGTH)
    assert (batch.supervised is None) == all(mask is None for _, mask, _, _ in places)
    for row, (ids, mask, index, number) in enumerate(places):
        trained = by_hand(np.ones(len(ids), np.bool_) if mask is None else mask, index, number)
        expected = [is_trained and column > 0 for piece in trained for column, is_trained in enumerate(piece)]
        assert batch.loss_mask[row].tolist() == expected + [False] * (LENGTH - len(expected))
    assert batch.num_targets == np.count_nonzero(batch.loss_mask)


@settings(deadline=None)
@given(shards=packed_shards())
def test_an_index_counts_its_rows_and_tokens(shards):
    """The numbers of rows and tokens are those of the rows read one by one."""
    for ids, mask, index in shards:
        batch = read_rows([(ids, mask, index, row) for row in range(index.num_rows)], LENGTH)
        assert batch.num_rows == index.num_rows
        assert batch.num_tokens == index.num_tokens


def test_pieces_side_by_side_stay_pieces():
    """Documents that lie side by side in the ids are still two in the row, and so are those that do not."""
    ids = np.arange(10, 20, dtype=np.uint16)
    index = RowIndex(np.array([0, 3, 6, 1]), np.array([3, 2, 1, 2]), np.array([0, 2, 4]))
    batch = read_rows([(ids, None, index, 0), (ids, None, index, 1)], 6)
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 14, 0], [16, 11, 12, 0, 0, 0]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1, -1], [0, 1, 1, -1, -1, -1]]


def test_a_row_of_nothing_is_padding():
    """The row that fills up a last batch holds no token and no target, wherever it stands."""
    ids = np.array([7, 8], np.uint32)
    index = RowIndex(np.array([0]), np.array([2]), np.array([0, 1]))
    batch = read_rows([NO_ROW, (ids, None, index, 0), NO_ROW], 3)
    assert batch.input_ids.tolist() == [[0, 0, 0], [7, 8, 0], [0, 0, 0]]
    assert batch.document_ids.tolist() == [[-1, -1, -1], [0, 0, -1], [-1, -1, -1]]
    assert batch.num_tokens == 2
    assert batch.num_targets == 1


def test_a_batch_of_empty_rows_has_no_target():
    """A rank whose lanes have ended still takes part, with a batch that weighs nothing."""
    batch = read_rows([NO_ROW, NO_ROW], 3)
    assert batch.num_tokens == batch.num_targets == 0
    assert not batch.loss_mask.any()


def test_rows_are_read_from_a_memory_map(tmp_path):
    """Ids may lie in a file that is mapped, and what is read does not change with it."""
    np.arange(1, 9, dtype=np.uint16).tofile(tmp_path / "ids")
    ids = np.memmap(tmp_path / "ids", np.uint16, "r+")
    index = RowIndex(np.array([5, 0]), np.array([3, 1]), np.array([0, 2]))
    batch = read_rows([(ids, None, index, 0)], 4)
    ids[:] = 0
    assert batch.input_ids.tolist() == [[6, 7, 8, 1]]


def test_a_batch_carries_its_cursor():
    """The cursor given is the batch's, and the start of the data if none is."""
    assert read_rows([NO_ROW], 2, Cursor(5)).cursor == Cursor(5)
    assert read_rows([NO_ROW], 2).cursor == Cursor()


def test_an_empty_index_has_no_rows():
    """The index of no rows counts neither rows nor tokens."""
    assert RowIndex.empty().num_rows == 0
    assert RowIndex.empty().num_tokens == 0
