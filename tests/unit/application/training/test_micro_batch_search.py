import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.application.training.micro_batch_search import try_sizes
from holdfast.domain.errors import OutOfMemory
from holdfast.domain.training.micro_batch import MicroBatchPolicy, next_candidate
from holdfast.ports.testing.optimizer import files_of


@given(
    batch_rows=st.integers(1, 500),
    fixed=st.integers(0, 1000),
    a_row=st.integers(1, 100),
    most=st.integers(1, 50_000),
    really=st.integers(1, 500),
)
def test_sizes_are_tried_until_the_largest_that_fits(batch_rows, fixed, a_row, most, really):
    """Where memory grows by the row, the largest size within bounds is found, and no larger one is tried."""
    sizes = MicroBatchPolicy(batch_rows, batch_rows).sizes
    peaks, failed = {0: fixed}, set()
    while (rows := next_candidate(sizes, peaks, failed, most)) is not None:
        assert rows not in peaks
        assert rows not in failed
        if rows > really:
            failed.add(rows)
        else:
            peaks[rows] = fixed + a_row * rows
    tried = [*(rows for rows in peaks if rows), *failed]
    assert tried[0] == 1
    assert len(tried) <= len(sizes)
    assert all(fixed + a_row * rows <= most for rows in tried[1:])
    fits = [rows for rows in sizes if rows <= really and fixed + a_row * rows <= most]
    gaps = [rows for rows, more in itertools.pairwise(fits) if more > 4 * rows]
    if fits and not gaps:
        assert max(peaks) == max(fits)


class ByRows:
    """Stands for memory of which each row of a trial takes ten bytes, beside a hundred."""

    def __init__(self, trainable, most):
        self._most = most
        self.tried = []
        update = trainable.update

        def noted(**arguments):
            begun = update(**arguments)
            accumulate = begun.accumulate
            begun.accumulate = lambda part, **options: self.tried.append(part.num_rows) or accumulate(part, **options)
            return begun

        trainable.update = noted

    def reset(self):
        self.tried.clear()

    def peak(self):
        return 100 + 10 * max(self.tried)

    def held(self):
        return 95

    def most(self):
        return self._most


def trainable_of(max_rows=None):
    return MemoryOptimizer(max_rows=max_rows).prepare(
        MemoryModelFactory().build(vocabulary_size=5, end_of_text=4, seed=0)
    )


@pytest.mark.parametrize(
    ("most", "max_rows", "expected"),
    [
        (1000, None, {1: 110, 4: 140, 8: 180}),
        (145, None, {1: 110, 4: 140}),
        (1000, 5, {1: 110, 4: 140}),
        (5, None, {1: 110}),
    ],
)
def test_a_trial_leaves_nothing_but_the_peaks(most, max_rows, expected):
    """Sizes are tried in two parts, up to what may be taken or what fits, and the model is as it was."""
    trainable = trainable_of(max_rows)
    before = files_of(trainable.capture())
    gauge = ByRows(trainable, most)
    assert try_sizes(trainable, [1, 2, 4, 8], 16, gauge) == expected
    assert files_of(trainable.capture()) == before
    assert np.unique(gauge.tried).size == 1


def test_a_row_that_does_not_fit_is_an_error():
    """Where one row runs out of memory, training would too."""
    trainable = trainable_of(0)
    with pytest.raises(OutOfMemory):
        try_sizes(trainable, [1, 2], 16, ByRows(trainable, 1000))
