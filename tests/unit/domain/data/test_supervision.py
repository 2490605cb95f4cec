"""The numbers of what is trained on in packed rows, and the refusal of masks that are no use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.batch import Batch
from holdfast.domain.data.packing import BestFitPacking
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.data.supervision import Supervision
from holdfast.domain.errors import DataError

END = 9


@st.composite
def documents(draw):
    """Draw documents of ids below 10 with a mask."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
    ids = draw(st.lists(st.integers(0, END), min_size=sum(sizes), max_size=sum(sizes)))
    mask = draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    return np.array(sizes), np.array(ids, np.uint16), np.array(mask)


@settings(deadline=None)
@given(drawn=documents(), overflow=st.sampled_from(["truncate", "drop"]))
def test_flat_tokens_give_the_numbers_of_the_batch_that_is_read_from_them(drawn, overflow):
    """Counting a shard without reading its rows gives what the loss masks of its batches say."""
    sizes, ids, mask = drawn
    index = BestFitPacking(8, overflow)(np.cumsum(sizes) - sizes, sizes).index
    found = Supervision.of_rows(
        index, lambda begin, end: mask[begin:end], lambda begin, end: mask[begin:end] & (ids[begin:end] == END)
    )
    if not index.num_rows:
        assert found == Supervision()
        return
    batch = read_rows([(ids, mask, index, row) for row in range(index.num_rows)], 8)
    read = Supervision.of_batch(batch, {END})
    assert (found.tokens, found.supervised, found.pieces) == (read.tokens, read.supervised, read.pieces)
    assert (found.rows, found.rows_without_target) == (read.rows, read.rows_without_target)
    assert found.supervised == batch.num_targets
    assert (found.replies, found.replies_without_end) == (read.replies, read.replies_without_end)


def batch_of(mask) -> Batch:
    ids = np.array([[1, 2, END, 4], [1, 2, 3, 0]])
    return Batch(ids, np.array([0, 4]), np.array([4, 3]), supervised=np.array(mask, np.bool_))


def test_rows_without_a_target_and_replies_without_an_end_are_counted():
    """A reply counts as without an end also if its end-of-turn token is there, but not trained on."""
    found = Supervision.of_batch(batch_of([[0, 1, 0, 0], [0, 0, 0, 1]]), {END})
    assert found == Supervision(7, 1, 2, 2, rows_without_target=1, replies=1, replies_without_end=1)


def test_each_reply_of_a_row_needs_its_own_end():
    """The end of the last reply of a conversation is none of an earlier one, though both are in one row."""
    ids = np.array([[1, 2, 3, 4, 5, END]])
    mask = np.array([[0, 1, 1, 0, 1, 1]], np.bool_)
    found = Supervision.of_batch(Batch(ids, np.array([0]), np.array([6]), supervised=mask), {END})
    assert (found.replies, found.replies_without_end) == (2, 1)


def test_masks_that_train_on_nothing_or_on_everything_are_refused():
    """An all-zero and an all-one mask are errors that name the source, and any other mask is none."""
    with pytest.raises(DataError, match="no token of the source 'a' is trained on"):
        Supervision.of_batch(batch_of([[0] * 4] * 2), {END}).check(" of the source 'a'")
    with pytest.raises(DataError, match="every token is trained on"):
        Supervision.of_batch(batch_of([[1] * 4] * 2), {END}).check("")
    Supervision.of_batch(batch_of([[0, 0, 1, 1], [0, 1, 1, 1]]), {END}).check("")


def test_the_sentences_say_what_is_lost():
    """Rows without an end and documents that are too long are said with their numbers, and nothing without cause."""
    assert len(Supervision(100, 40, 3, 2).sentences("drop")) == 1
    lines = Supervision(100, 40, 3, 2, 1, 3, 2, 5).sentences("truncate", " at the beginning")
    assert "trained on 40 of 100 tokens (40.0%) in 2 rows at the beginning" in lines[0]
    assert "2 of 3 replies (66.7%) at the beginning train no end" in lines[1]
    assert "1 row of 2 at the beginning train nothing" in lines[2]
    assert "5 documents are longer than data.sequence_length and cut" in lines[3]
