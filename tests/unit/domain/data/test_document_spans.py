"""The flat arrays of pieces."""

import numpy as np

from holdfast.domain.data.batch import Spans, UnitName


def spans_of(samples, units, names):
    count = len(samples)
    numbers = np.arange(count)
    return Spans(
        np.array(samples, np.int64), numbers, np.array(units, np.int64), numbers.astype(np.uint64), numbers, numbers,
        np.array([3, 2, 4, 1][:count], np.int64), tuple(UnitName("s", name) for name in names),
    )  # fmt: skip


def test_pieces_lie_end_to_end_in_their_row():
    """The column of a piece is the number of tokens before it in its sample."""
    assert spans_of([5, 5, 6, 6], [0, 0, 0, 0], "a").column.tolist() == [0, 3, 0, 4]
    assert Spans.empty().column.tolist() == []


def test_joined_spans_name_the_same_units():
    """Parts with different tables of units have one table afterwards."""
    joined = Spans.join([spans_of([1, 2], [1, 0], "ab"), spans_of([3, 4], [0, 1], "bc"), Spans.empty()])
    assert [joined.units[unit].unit for unit in joined.unit] == ["b", "a", "b", "c"]
    assert joined.sample.tolist() == [1, 2, 3, 4]
    assert len(Spans.join([])) == 0


def test_some_spans_are_chosen():
    """A choice keeps the order and the names."""
    chosen = spans_of([1, 2, 3], [0, 1, 0], "ab").at(np.array([True, False, True]))
    assert (chosen.sample.tolist(), chosen.units) == ([1, 3], (("s", "a"), ("s", "b")))
