"""Packing documents into rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.batch import Batch
from domain.cursor import Cursor
from domain.packing import ConcatPacker, rows_of

# tokens are numbered through, so that each can be found again
documents = st.lists(st.integers(0, 25), max_size=30).map(
    lambda sizes: [np.arange(sum(sizes[:i]) + 1, sum(sizes[: i + 1]) + 1, dtype=np.uint16) for i in range(len(sizes))]
)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 4))
START = Cursor()


@dataclass
class Feeding:
    """A packer's batches over documents, from a cursor whose position counts documents."""

    documents: list[np.ndarray]
    length: int
    rows: int
    has_rest: bool = True

    def batches(self, cursor: Cursor = START) -> list[Batch]:
        return list(self._stream(ConcatPacker(self.length), cursor))

    def _stream(self, packer, cursor):
        for index in range(cursor.position, len(self.documents)):
            skip = cursor.skip if index == cursor.position else 0
            packer.add(self.documents[index], Cursor(position=index, skip=skip), Cursor(position=index + 1))
            while (batch := packer.take(self.rows)) is not None:
                yield batch
        if self.has_rest and (rest := packer.take_rest()) is not None:
            yield rest


def tokens_of(batches) -> list[int]:
    return [token for batch in batches for token in batch.input_ids[batch.document_ids >= 0].tolist()]


def same(one: Batch, two: Batch) -> bool:
    names = ("input_ids", "position_ids", "document_ids", "loss_mask")
    return one.cursor == two.cursor and all(np.array_equal(getattr(one, name), getattr(two, name)) for name in names)


@settings(deadline=None)
@given(documents=documents, shape=shapes)
def test_no_token_is_lost_or_repeated(documents, shape):
    """Tokens in are tokens out plus held, in order, at every moment."""
    length, rows = shape
    packer, taken, given_tokens = ConcatPacker(length), [], []
    for index, document in enumerate(documents):
        packer.add(document, Cursor(position=index), Cursor(position=index + 1))
        given_tokens += document.tolist()
        assert packer.held == len(given_tokens) - len(tokens_of(taken))
        while (batch := packer.take(rows)) is not None:
            taken.append(batch)
            assert packer.held == len(given_tokens) - len(tokens_of(taken))
    assert tokens_of(taken) == given_tokens[: len(given_tokens) - packer.held]
    assert packer.held < rows * length
    rest = packer.take_rest()
    assert tokens_of(taken + ([rest] if rest is not None else [])) == given_tokens
    assert packer.held == 0


@settings(deadline=None)
@given(documents=documents, shape=shapes)
def test_full_batches_are_full(documents, shape):
    """A batch that is no rest has all its rows and no padding."""
    for batch in Feeding(documents, *shape, has_rest=False).batches():
        assert batch.input_ids.shape == (shape[1], shape[0])
        assert (batch.document_ids >= 0).all()
        assert batch.num_tokens == shape[0] * shape[1]


@settings(deadline=None)
@given(documents=documents, shape=shapes)
def test_any_cut_resumes_equal(documents, shape):
    """Feeding a new packer from any batch's cursor on gives exactly the batches that followed it."""
    feeding = Feeding(documents, *shape)
    batches = feeding.batches()
    for index, batch in enumerate(batches):
        rest = feeding.batches(batch.cursor)
        assert len(rest) == len(batches) - index - 1
        assert all(same(*pair) for pair in zip(rest, batches[index + 1 :], strict=True))


@settings(deadline=None)
@given(documents=documents, shapes=st.lists(shapes, min_size=2, max_size=2))
def test_a_cut_resumes_in_another_shape(documents, shapes):
    """The tokens behind a cursor are the same whatever the length and number of rows before and behind it."""
    before, after = (Feeding(documents, *shape) for shape in shapes)
    everything = [token for document in documents for token in document.tolist()]
    carried = 0
    for batch in before.batches():
        carried += batch.num_tokens
        assert tokens_of(after.batches(batch.cursor)) == everything[carried:]


@settings(deadline=None)
@given(documents=documents, shape=shapes)
def test_each_piece_of_a_document_starts_anew(documents, shape):
    """In a row positions count from 0 in each piece, the piece's first token is no target, and all others are."""
    owner = [index for index, document in enumerate(documents) for _ in document]
    for batch in Feeding(documents, *shape).batches():
        for row in range(batch.num_rows):
            real = int(np.count_nonzero(batch.document_ids[row] >= 0))
            owners = [owner[token - 1] for token in batch.input_ids[row, :real].tolist()]
            known = list(dict.fromkeys(owners))
            positions = [owners[:column].count(owners[column]) for column in range(real)]
            assert batch.document_ids[row, :real].tolist() == [known.index(each) for each in owners]
            assert batch.position_ids[row, :real].tolist() == positions
            assert batch.loss_mask[row, :real].tolist() == [position > 0 for position in positions]


@settings(deadline=None)
@given(documents=documents, shape=shapes)
def test_padding_is_marked(documents, shape):
    """Only the end of the last row of the rest is padding: id 0, position 0, document -1, never a target."""
    batches = Feeding(documents, *shape).batches()
    for batch in batches:
        is_padding = batch.document_ids.ravel() < 0
        assert is_padding.sum() < shape[0]
        assert (np.diff(is_padding.astype(int)) >= 0).all()
        for array in (batch.input_ids, batch.position_ids, batch.loss_mask):
            assert not array.ravel()[is_padding].any()
    assert not any((batch.document_ids < 0).any() for batch in batches[:-1])


@settings(deadline=None)
@given(documents=documents, shape=shapes)
def test_arrays_have_the_promised_types(documents, shape):
    """Whatever the tokens' type, a batch has int64 ids and positions, int32 documents and a bool mask."""
    for batch in Feeding(documents, *shape).batches():
        arrays = (batch.input_ids, batch.position_ids, batch.document_ids, batch.loss_mask)
        assert [array.dtype for array in arrays] == [np.int64, np.int64, np.int32, np.bool_]
        assert len({array.shape for array in arrays}) == 1


@settings(deadline=None)
@given(documents=documents.filter(lambda each: any(map(len, each))), shape=shapes, rows=st.integers(1, 5))
def test_micro_batches_make_the_batch(documents, shape, rows):
    """A batch split into micro-batches and put together again is the batch, its counts and its cursor."""
    batch = Feeding(documents, *shape).batches()[0]
    parts = list(batch.split(rows))
    assert all(part.num_rows <= rows for part in parts)
    assert sum(part.num_targets for part in parts) == batch.num_targets
    assert sum(part.num_tokens for part in parts) == batch.num_tokens
    whole = Batch(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("input_ids", "position_ids", "document_ids", "loss_mask")
        ),
        cursor=parts[-1].cursor,
    )
    assert same(whole, batch)


def test_one_batch_by_hand():
    """Two documents of three and four tokens in rows of four."""
    packer = ConcatPacker(4)
    packer.add(np.array([1, 2, 3], np.uint16), Cursor(), Cursor(position=5))
    assert packer.take(1) is None
    packer.add(np.array([4, 5, 6, 7], np.uint16), Cursor(position=5), Cursor(position=9))
    batch = packer.take(1)
    assert batch is not None
    assert batch.input_ids.tolist() == [[1, 2, 3, 4]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0]]
    assert batch.document_ids.tolist() == [[0, 0, 0, 1]]
    assert batch.loss_mask.tolist() == [[False, True, True, False]]
    assert batch.cursor == Cursor(position=5, skip=1)
    rest = packer.take_rest()
    assert rest is not None
    assert rest.input_ids.tolist() == [[5, 6, 7, 0]]
    assert rest.document_ids.tolist() == [[0, 0, 0, -1]]
    assert rest.cursor == Cursor(position=9)


def test_nothing_gives_nothing():
    """A packer that was given no token has neither a batch nor a rest."""
    packer = ConcatPacker(4)
    packer.add(np.array([], np.uint16), Cursor(), Cursor(position=1))
    assert packer.take(1) is None
    assert packer.take_rest() is None


@pytest.mark.parametrize("num_tokens", [1, 4, 9])
def test_rows_without_a_packer(num_tokens):
    """Pieces become rows by themselves too, as evaluation and generation use them."""
    batch = rows_of([np.arange(1, num_tokens + 1)], 4, Cursor(skip=3))
    assert tokens_of([batch]) == list(range(1, num_tokens + 1))
    assert batch.cursor == Cursor(skip=3)
