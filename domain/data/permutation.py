"""Keyed permutations of any size, evaluated only at the positions that are needed."""

from __future__ import annotations

from hashlib import blake2b
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALL = 1024
_ROUNDS = 6


def permute(places: NDArray[np.int64], size: int, *key: int) -> NDArray[np.int64]:
    """Return the images of ``places`` under the permutation of ``range(size)`` that ``key`` chooses, int64, same shape.

    ``places`` are int64 from 0 to ``size`` - 1, ``size`` is at most 2**62, ``key`` any integers. Each place is computed
    independently, in about 30 ns if there are thousands, so the cost does not depend on ``size``.
    A Feistel network permutes the two digits of a place in base sqrt(size); the few results that are too large are
    permuted again until they are below ``size`` (cycle walking: Black, Rogaway: Ciphers with arbitrary finite domains,
    2002).
    """
    words = key_words(size, *key)
    if size <= _SMALL:  # as fast, and fair down to sizes at which a network has too few permutations
        return np.argsort(mix(np.arange(size, dtype=np.uint64) + words[0]))[places]
    values = _scramble(places.reshape(-1).astype(np.uint64), size, words)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        again = _scramble(values[outside], size, words)
        values[outside] = again
        outside = outside[again >= size]
    return values.view(np.int64).reshape(places.shape)


def key_words(*key: int) -> NDArray[np.uint64]:
    """Return eight words, uint64 (8,), as a hash of any integers."""
    digest = blake2b(",".join(str(int(number)) for number in key).encode(), digest_size=64).digest()
    return np.frombuffer(digest, "<u8")


def mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each of ``numbers``, uint64 of the same shape, without collisions.

    Splitmix64's step and finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> 30
    mixed *= 0xBF58476D1CE4E5B9
    mixed ^= mixed >> 27
    mixed *= 0x94D049BB133111EB
    mixed ^= mixed >> 31
    return mixed


def _scramble(values: NDArray[np.uint64], size: int, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    base = isqrt(size - 1) + 1
    most = -(-size // base)
    high, low = np.divmod(values, np.uint64(base))
    spare = np.empty_like(values)
    for number in range(0, _ROUNDS, 2):
        _add_round(high, most, low, words[number], spare)
        _add_round(low, base, high, words[number + 1], spare)
    high *= np.uint64(base)
    high += low
    return high


def _add_round(
    digit: NDArray[np.uint64], base: int, other: NDArray[np.uint64], word: np.uint64, spare: NDArray[np.uint64]
) -> None:
    mixed = other ^ word
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    np.right_shift(mixed, np.uint64(32), out=spare)
    mixed ^= spare
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed >>= np.uint64(32)  # a product's high bits depend on all of the factor's
    mixed *= np.uint64(base)
    mixed >>= np.uint64(32)
    digit += mixed
    np.subtract(digit, np.uint64(base), out=spare)
    np.minimum(digit, spare, out=digit)  # for digits below the base the difference wraps around and is larger
