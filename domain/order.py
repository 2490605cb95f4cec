"""The order in which data are read: a pure function of the seed and the place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from domain.cursor import Cursor


def unit_order(num_units: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(num_units)``, int64, that depends on nothing but the arguments."""
    return _permutation(num_units, np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64)))


def row_order(num_rows: int, *, seed: int, window: Cursor) -> NDArray[np.int64]:
    """Return the permutation, int64, of the rows that were packed from ``window`` on; ``window.taken`` is ignored."""
    place = [seed % 2**64, window.epoch, window.unit, window.position, window.skip]
    return _permutation(num_rows, np.random.Philox(np.random.SeedSequence(place)))


def _permutation(length: int, numbers: np.random.Philox) -> NDArray[np.int64]:
    # numpy guarantees Philox's numbers over its versions, but not what ``Generator.permutation`` makes of them
    return np.argsort(numbers.random_raw(length), kind="stable").astype(np.int64, copy=False)
