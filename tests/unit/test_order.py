"""The order in which units are read."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.cursor import Cursor
from domain.order import row_order, unit_order

seeds = st.integers(-(2**63), 2**64 - 1)
epochs = st.integers(0, 10_000)
places = st.builds(
    Cursor, epoch=epochs, unit=st.integers(0, 10**6), position=st.integers(0, 2**50), skip=st.integers(0, 10**6)
)


@settings(deadline=None)
@given(num_units=st.integers(0, 300), seed=seeds, epoch=epochs)
def test_every_unit_comes_once(num_units, seed, epoch):
    """An epoch's order is a permutation of the units, int64."""
    order = unit_order(num_units, seed=seed, epoch=epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(num_units))


@settings(deadline=None)
@given(num_units=st.integers(0, 300), seed=seeds, epoch=epochs)
def test_the_order_depends_on_its_arguments_alone(num_units, seed, epoch):
    """Neither earlier calls nor numpy's global state change an order."""
    first = unit_order(num_units, seed=seed, epoch=epoch)
    np.random.seed(epoch)  # noqa: NPY002 - the global state is the point
    unit_order(num_units, seed=seed + 1, epoch=epoch)
    assert unit_order(num_units, seed=seed, epoch=epoch).tolist() == first.tolist()


@settings(deadline=None)
@given(seed=seeds, epoch=epochs)
def test_seeds_and_epochs_have_orders_of_their_own(seed, epoch):
    """Another seed, or the next epoch, reads a hundred units in another order."""
    orders = {
        tuple(unit_order(100, seed=seed, epoch=epoch).tolist()),
        tuple(unit_order(100, seed=seed + 1, epoch=epoch).tolist()),
        tuple(unit_order(100, seed=seed, epoch=epoch + 1).tolist()),
    }
    assert len(orders) == 3


def test_every_place_is_equally_likely():
    """Over many epochs each unit comes first, and last, about equally often."""
    orders = np.array([unit_order(8, seed=0, epoch=epoch) for epoch in range(4000)])
    for place in (0, 7):
        counts = np.bincount(orders[:, place], minlength=8)
        assert counts.min() > 400
        assert counts.max() < 600


def test_the_order_is_the_one_of_earlier_versions():
    """A run resumes in the order that it began with, whatever version of the code or of numpy began it."""
    assert unit_order(10, seed=0, epoch=0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert unit_order(10, seed=0, epoch=1).tolist() == [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]
    assert unit_order(10, seed=-1, epoch=0).tolist() == [8, 9, 0, 7, 4, 2, 6, 3, 1, 5]
    large = unit_order(100_000, seed=3, epoch=4).astype("<i8").tobytes()
    assert sha256(large).hexdigest() == "f8fd04f3678193a600a7483e526ebbfa92e24a3cc6c094626bbbee4ac520ffeb"


@settings(deadline=None)
@given(num_rows=st.integers(0, 300), seed=seeds, place=places, taken=st.integers(0, 300))
def test_every_row_of_a_window_comes_once(num_rows, seed, place, taken):
    """The rows of a window come in a permutation, int64, that how many were taken already does not change."""
    order = row_order(num_rows, seed=seed, window=place)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(num_rows))
    assert row_order(num_rows, seed=seed, window=replace(place, taken=taken)).tolist() == order.tolist()


@settings(deadline=None)
@given(seed=seeds, place=places)
def test_windows_have_orders_of_their_own(seed, place):
    """Each part of a window's place, and the seed, decides about the order of its rows."""
    others = [replace(place, **{name: getattr(place, name) + 1}) for name in ("epoch", "unit", "position", "skip")]
    orders = {tuple(row_order(100, seed=seed, window=each).tolist()) for each in (place, *others)}
    orders.add(tuple(row_order(100, seed=seed + 1, window=place).tolist()))
    assert len(orders) == 6


def test_the_order_of_rows_is_the_one_of_earlier_versions():
    """A run resumes inside a window in the order that it began with."""
    place = Cursor(epoch=1, unit=2, position=3, skip=4)
    assert row_order(10, seed=0, window=Cursor()).tolist() == [1, 4, 5, 6, 8, 2, 0, 3, 9, 7]
    assert row_order(10, seed=7, window=place).tolist() == [8, 3, 4, 9, 7, 5, 1, 0, 2, 6]
