"""An estimate of the number of distinct documents."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Self, final

import numpy as np

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BITS = 12
_REGISTERS = 1 << _BITS
_LARGEST = 64 - _BITS + 1

STANDARD_ERROR = 1.04 / math.sqrt(_REGISTERS)
"""The standard error of the estimate, relative to the number: 1.6 % (Flajolet et al. 2007)."""


@final
class DistinctSketch:
    """A HyperLogLog sketch with 2^12 registers of 64-bit hashes; two sketches merge exactly, in any order.

    ``registers`` is uint8 (4096,): for the hashes that share their first 12 bits, the largest number of zeros that
    lead the other bits, plus one.
    """

    def __init__(self, registers: NDArray[np.uint8] | None = None) -> None:
        self.registers = np.zeros(_REGISTERS, np.uint8) if registers is None else registers

    @classmethod
    def of(cls, hashes: NDArray[np.uint64]) -> Self:
        """Return the sketch of ``hashes``, uint64 (documents,)."""
        registers = np.zeros(_REGISTERS, np.uint8)
        rest = hashes << np.uint64(_BITS)
        high = (rest >> np.uint64(32)).astype(np.float64)  # halves of 32 bits, which float64 represents exactly
        low = (rest & np.uint64(0xFFFFFFFF)).astype(np.float64)
        length = np.where(high > 0, np.frexp(high)[1] + 32, np.frexp(low)[1])
        ranks = np.minimum(64 - length + 1, _LARGEST).astype(np.uint8)
        np.maximum.at(registers, (hashes >> np.uint64(64 - _BITS)).astype(np.intp), ranks)
        return cls(registers)

    def __or__(self, other: Self) -> Self:
        return type(self)(np.maximum(self.registers, other.registers))

    def estimate(self) -> int:
        """Return the estimated number of distinct hashes.

        The estimator is Ertl's (arXiv 1702.01284, algorithm 6), which needs no correction for small or large numbers.
        """
        found = np.bincount(self.registers, minlength=_LARGEST + 1).tolist()
        total = _REGISTERS * _tau(1 - found[_LARGEST] / _REGISTERS)
        for count in reversed(found[1:_LARGEST]):
            total = 0.5 * (total + count)
        total += _REGISTERS * _sigma(found[0] / _REGISTERS)
        return round(_REGISTERS**2 / (2 * math.log(2) * total))

    def to_json(self) -> str:
        """Return the registers, 6 bits each, in base64."""
        bits = np.unpackbits(self.registers[:, None], axis=1)[:, 2:]
        return b64encode(np.packbits(bits).tobytes()).decode("ascii")

    @classmethod
    def from_json(cls, record: str) -> Self:
        """Return the sketch that ``to_json`` described. Raises ``DataError`` for any other text."""
        packed = np.frombuffer(b64decode(record, validate=True), np.uint8)
        if len(packed) != _REGISTERS * 6 // 8:
            msg = "a sketch of distinct documents has another length"
            raise DataError(msg)
        bits = np.unpackbits(packed).reshape(_REGISTERS, 6)
        return cls(np.packbits(np.pad(bits, ((0, 0), (2, 0))), axis=1)[:, 0])


def _sigma(share: float) -> float:
    """Return the contribution of the registers that are zero; ``share`` is from 0 to 1."""
    if share == 1:
        return math.inf
    power, total, weight = share, share, 1.0
    while True:
        power *= power
        before = total
        total += power * weight
        weight += weight
        if total == before:
            return total


def _tau(share: float) -> float:
    """Return the contribution of the registers that are full; ``share`` is the share of the others."""
    if share in {0, 1}:
        return 0.0
    root, total, weight = share, 1 - share, 1.0
    while True:
        root = math.sqrt(root)
        before = total
        weight *= 0.5
        total -= (1 - root) ** 2 * weight
        if total == before:
            return total / 3
