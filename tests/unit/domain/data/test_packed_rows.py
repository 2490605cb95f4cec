"""Rows that are laid out, dealt in parts, and joined."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from holdfast.application.data.lane_reader import Window
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking
from holdfast.domain.data.row_index import NO_ROW, RowIndex, join_rows, lay_out, read_rows

LENGTH = 8
packings = st.sampled_from([ConcatPacking(LENGTH), BestFitPacking(LENGTH), SlidingPacking(LENGTH, 3)])


@st.composite
def laid_out(draw):
    """Draw rows of a shard whose ids are all different, in any order, and where each one is read."""
    sizes = np.array(draw(st.lists(st.integers(1, 20), max_size=15)), np.int64)
    ids = np.arange(1, sizes.sum() + 1).astype(draw(st.sampled_from([np.uint16, np.uint32])))
    index = draw(packings)(np.cumsum(sizes) - sizes, sizes).index
    order = np.array(draw(st.permutations(range(index.num_rows))), np.int64)
    mask = draw(st.one_of(st.none(), arrays(np.bool_, len(ids))))
    return lay_out(ids, index, order, LENGTH, mask), [(ids, mask, index, row) for row in order.tolist()]


@settings(deadline=None)
@given(st.lists(laid_out(), max_size=4), st.integers(0, 5), st.data())
def test_parts_are_joined_to_the_batch_that_reading_row_by_row_gives(several, num_empty, data):
    """Parts of any rows, put anywhere in a batch, make the batch that the same rows make when they are read singly."""
    parts, read = [], []
    for rows, places in several:
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, rows.num_rows)] * 2)))
        parts.append(Window.of(rows, LanePosition(), LanePosition()).part(begin, end))
        read += places[begin:end]
    where = np.array(data.draw(st.permutations(range(len(read) + num_empty))), np.int64)
    if not len(where):
        return
    joined = join_rows(parts, where[: len(read)], (len(where), LENGTH), Cursor(3))
    by_row = dict(zip(where.tolist(), read, strict=False))
    expected = read_rows([by_row.get(row, NO_ROW) for row in range(len(where))], LENGTH, Cursor(3))
    for name in ("input_ids", "starts", "row_lengths"):
        found = getattr(joined, name)
        assert found.dtype == np.int64
        assert found.tolist() == getattr(expected, name).tolist()
    assert joined.cursor == expected.cursor
    assert joined.loss_mask.tolist() == expected.loss_mask.tolist()


def test_pieces_that_lie_apart_or_in_another_order_are_found():
    """A row is its pieces, wherever they lie, though their first and last ones are as far apart as it is long."""
    ids = np.arange(100, 140, dtype=np.uint16)
    index = RowIndex(np.array([0, 20, 3, 30]), np.array([3, 3, 2, 8]), np.array([0, 3, 4]))
    rows = lay_out(ids, index, np.array([1, 0]), LENGTH)
    assert rows.ids.tolist() == [[*range(130, 138)], [100, 101, 102, 120, 121, 122, 103, 104]]
    assert (rows.lengths.tolist(), rows.starts.tolist(), rows.counts.tolist()) == ([8, 8], [0, 0, 3, 6], [1, 3])
