"""The order in which units of data are read: a pure function of seed and epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def unit_order(num_units: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(num_units)``, int64, that depends on nothing but the arguments."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64)))
    return generator.permutation(num_units)
