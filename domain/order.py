"""The order in which data are read: a pure function of the seed and the place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from domain.cursor import Cursor


def unit_order(num_units: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(num_units)``, int64, that depends on nothing but the arguments."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64)))
    return generator.permutation(num_units)


def row_order(num_rows: int, *, seed: int, window: Cursor) -> NDArray[np.int64]:
    """Return the permutation, int64, of the rows that were packed from ``window`` on; ``window.taken`` is ignored."""
    place = [seed % 2**64, window.epoch, window.unit, window.position, window.skip]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(place)))
    return generator.permutation(num_rows)
