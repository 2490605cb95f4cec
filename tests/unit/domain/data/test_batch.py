"""What a model takes of packed rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from holdfast.domain.data.batch import Batch
from holdfast.domain.data.cursor import Cursor

NAMES = ("input_ids", "position_ids", "document_ids", "loss_mask", "row_lengths")


@st.composite
def layouts(draw):
    """Draw the pieces' lengths of each row, none longer than the row; rows may be empty, short or full."""
    length = draw(st.integers(1, 9))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        pieces = draw(st.lists(st.integers(1, length), max_size=length))
        rows.append([size for number, size in enumerate(pieces) if sum(pieces[: number + 1]) <= length])
    return length, rows


def batch_of(length, rows, supervised=None):
    input_ids = np.zeros((len(rows), length), np.int64)
    starts = []
    for number, pieces in enumerate(rows):
        input_ids[number, : sum(pieces)] = np.arange(1, sum(pieces) + 1) + 100 * number
        starts += [number * length + sum(pieces[:piece]) for piece in range(len(pieces))]
    lengths = np.array([sum(pieces) for pieces in rows], np.int64)
    return Batch(input_ids, np.array(starts, np.int64), lengths, Cursor(7), supervised)


@st.composite
def batches(draw):
    """Draw a batch in which all tokens are trained on, or some."""
    length, rows = draw(layouts())
    return batch_of(length, rows, draw(st.one_of(st.none(), arrays(np.bool_, (len(rows), length)))))


@settings(deadline=None)
@given(layout=layouts())
def test_each_piece_starts_anew(layout):
    """Positions count from 0 in each piece, pieces are numbered in their row, and padding is 0 and -1."""
    length, rows = layout
    batch = batch_of(length, rows)
    for number, pieces in enumerate(rows):
        padding = length - sum(pieces)
        positions = [place for size in pieces for place in range(size)]
        owners = [piece for piece, size in enumerate(pieces) for _ in range(size)]
        assert batch.position_ids[number].tolist() == positions + [0] * padding
        assert batch.document_ids[number].tolist() == owners + [-1] * padding
        assert batch.loss_mask[number].tolist() == [place > 0 for place in positions] + [False] * padding


@settings(deadline=None)
@given(batch=batches())
def test_targets_are_supervised_tokens_with_a_token_before_them(batch):
    """A token is a target unless it is padding, the first of a piece, or one that is not trained on."""
    expected = batch.position_ids > 0
    if batch.supervised is not None:
        expected &= batch.supervised
    assert batch.loss_mask.tolist() == expected.tolist()


@settings(deadline=None)
@given(batch=batches())
def test_counts_are_those_of_the_arrays(batch):
    """Tokens are what is no padding, targets what the loss mask marks."""
    assert batch.num_rows == len(batch.row_lengths)
    assert batch.num_tokens == np.count_nonzero(batch.document_ids >= 0)
    assert batch.num_targets == np.count_nonzero(batch.loss_mask)


@settings(deadline=None)
@given(batch=batches())
def test_arrays_have_the_promised_types(batch):
    """Ids and positions are int64, documents int32, the mask bool, all of the batch's shape."""
    arrays = (batch.input_ids, batch.position_ids, batch.document_ids, batch.loss_mask)
    assert [array.dtype for array in arrays] == [np.int64, np.int64, np.int32, np.bool_]
    assert {array.shape for array in arrays} == {batch.input_ids.shape}


@settings(deadline=None)
@given(batch=batches(), rows=st.integers(1, 7))
def test_micro_batches_make_the_batch(batch, rows):
    """A batch split into micro-batches and put together again is the batch, its counts and its cursor."""
    parts = list(batch.split(rows))
    assert [part.num_rows for part in parts[:-1]] == [rows] * (len(parts) - 1)
    assert 0 < parts[-1].num_rows <= rows
    assert all(part.cursor == batch.cursor for part in parts)
    assert sum(part.num_targets for part in parts) == batch.num_targets
    assert sum(part.num_tokens for part in parts) == batch.num_tokens
    for name in NAMES:
        joined = np.concatenate([getattr(part, name) for part in parts])
        assert joined.tolist() == getattr(batch, name).tolist()


@settings(deadline=None)
@given(batch=batches())
def test_a_piece_alone_has_the_targets_that_it_has_in_the_batch(batch):
    """Pieces that are taken out of a batch keep ids and targets, and make up all tokens of the batch."""
    places = batch.document_ids >= 0
    pieces = list(batch.pieces())
    for name in ("input_ids", "loss_mask", "position_ids"):
        taken = [value for piece in pieces for value in getattr(piece, name)[0].tolist()]
        assert taken == getattr(batch, name)[places].tolist()
    assert sum(piece.num_targets for piece in pieces) == batch.num_targets


@pytest.mark.parametrize("first", NAMES)
def test_looking_changes_nothing(first):
    """Whichever array is asked for first, all of them are the same."""
    layout = (4, [[1, 2], [4], [], [2]])
    batch, other = batch_of(*layout), batch_of(*layout)
    getattr(batch, first)
    for name in NAMES:
        assert getattr(batch, name).tolist() == getattr(other, name).tolist()
