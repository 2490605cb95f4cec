"""How many rows of a cache are read at a time; what they are is tested with the feed."""

from itertools import islice

import pytest

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.row_index import NO_ROW
from holdfast.domain.data.sample_order import RankShard


class EmptyRows:
    """Many rows without a token, which remember how many were asked for at a time."""

    num_rows = 10_000

    def __init__(self):
        self.asked = []

    def at(self, numbers):
        self.asked.append(len(numbers))
        return [NO_ROW] * len(numbers)


@pytest.mark.parametrize(
    ("rows", "length", "asked"),
    [
        (4, 8, [4, 8, 16, 32, 64, 128, 128]),
        (48, 8, [48, 96, 96]),
        (200, 8, [200, 200]),
        (4, 1 << 15, [4, 8, 8]),
        (1, 1 << 20, [1, 1]),
    ],
)
def test_the_first_batch_waits_for_no_other(rows, length, asked):
    """Ever more batches are read at a time, up to so many rows and tokens as shards and memory allow."""
    source = EmptyRows()
    stream = CachedBatches([source], Mixture(0, (Stage(0, (1,)),)), RankShard(rows), length=length, epochs=None)
    batches = stream.batches(Cursor())
    assert next(batches).cursor == Cursor(rows)
    assert source.asked == asked[:1]
    ends = [batch.cursor.samples for batch in islice(batches, sum(asked) // rows - 1)]
    assert ends == [rows * number for number in range(2, sum(asked) // rows + 1)]
    assert source.asked == asked
