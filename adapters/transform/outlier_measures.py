"""Measures of texts, and the bounds beyond which a text is an outlier.

Robust z-scores and the constants 1.4826 and 1.253314: Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993).
"""

from __future__ import annotations

import unicodedata
import zlib
from functools import cache
from math import exp, log
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    CountTokens = Callable[[Sequence[str]], Sequence[int] | NDArray[Any]]
    Bounds = tuple[float | None, float | None]

SAMPLE_BYTES = 512
LEAST_SAMPLE = 20
"""The least number of texts from which bounds are computed."""

_HALF = SAMPLE_BYTES // 2
_BLOCK_BYTES = 4
_PADDING = b"\xff"  # in no UTF-8 text
_MAD_TO_DEVIATION = 1.4826
_MEAN_TO_DEVIATION = 1.253314
_DIGITS = 9  # of a bound: more could depend on the processor


def measure_texts(
    texts: Sequence[str], measures: Iterable[str], count_tokens: CountTokens | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return each of ``measures`` of ``texts`` as a float64 array (texts,).

    - ``length``: Unicode code points of the text.

    The others are measured on a sample: the whole text up to 512 bytes of UTF-8, else 256 bytes from its beginning and
    256 from its middle.

    - ``repetition``: share of the blocks of four bytes that occur earlier in the sample, from 0 to below 1.
    - ``symbols``: share of the characters of Unicode's categories P and S.
    - ``compression_ratio``: bytes after zlib's compression at level 1, divided by bytes before.
    - ``bytes_per_token``: bytes divided by the number of tokens, which ``count_tokens`` returns for each text.

    Raises ``UnicodeEncodeError`` for half of a surrogate pair in a sample.
    """
    wanted = tuple(measures)
    samples = [sample_of(text) for text in texts] if set(wanted) - {"length"} else []
    matrix = _matrix(samples) if {"repetition", "symbols"} & set(wanted) else np.empty((0, SAMPLE_BYTES), np.uint8)
    by_name: dict[str, NDArray[np.float64]] = {}
    for name in wanted:
        match name:
            case "length":
                by_name[name] = np.array([*map(len, texts)], np.float64)
            case "repetition":
                by_name[name] = _repetition(matrix, samples)
            case "symbols":
                by_name[name] = _symbols(matrix, samples)
            case "compression_ratio":
                by_name[name] = np.array([len(zlib.compress(each, 1)) / max(len(each), 1) for each in samples])
            case "bytes_per_token":
                assert count_tokens is not None, "bytes_per_token needs a tokenizer"
                counts = np.asarray(count_tokens([each.decode(errors="ignore") for each in samples]), np.float64)
                by_name[name] = _lengths(samples) / np.maximum(counts, 1)
    return by_name


def sample_of(text: str) -> bytes:
    """Return at most 512 bytes of ``text`` as UTF-8: all of it, or its beginning and its middle."""
    if len(text) <= SAMPLE_BYTES:
        whole = text.encode()
        middle = len(whole) // 2
        return whole if len(whole) <= SAMPLE_BYTES else whole[:_HALF] + whole[middle : middle + _HALF]
    middle = len(text) // 2
    if text.isascii():
        return (text[:_HALF] + text[middle : middle + _HALF]).encode()
    return text[:_HALF].encode()[:_HALF] + text[middle : middle + _HALF].encode()[:_HALF]


def fit_outliers(
    sample: Sequence[str], options: Mapping[str, Mapping[str, Any]], count_tokens: CountTokens | None = None
) -> dict[str, Bounds]:
    """Return the lower and the upper bound of each measure in ``options``; None is no bound.

    The options of a measure are ``zscore``, a pair ``quantiles``, or ``min`` and ``max``, which need no sample. The
    z-score of ``length`` is that of its logarithm, because lengths are skewed. If more than half of the values are
    equal, the mean absolute deviation takes the place of the median absolute deviation; if all are, there are no
    bounds. The quantiles 0 and 1 set no bound. Raises ``DataError`` if the sample has fewer than 20 texts.
    """
    fitted = [name for name, how in options.items() if "min" not in how and "max" not in how]
    if fitted and len(sample) < LEAST_SAMPLE:
        msg = (
            f"the bounds of data.validation.outliers.{fitted[0]} need a sample of at least {LEAST_SAMPLE} documents, "
            f"and the data have {len(sample)}: set min and max in place of zscore or quantiles, or leave it out"
        )
        raise DataError(msg)
    values = measure_texts(sample, fitted, count_tokens)
    return {name: _bounds(name, values.get(name), how) for name, how in options.items()}


def _bounds(name: str, values: NDArray[np.float64] | None, how: Mapping[str, Any]) -> Bounds:
    if values is None:
        return how.get("min"), how.get("max")
    if "quantiles" in how:
        low, high = how["quantiles"]
        return (
            None if low <= 0 else _rounded(float(np.quantile(values, low))),
            None if high >= 1 else _rounded(float(np.quantile(values, high))),
        )
    if name != "length":
        return _by_zscore(values, how["zscore"])
    low, high = _by_zscore(np.array([log(max(value, 1)) for value in values.tolist()]), how["zscore"])
    return None if low is None else _rounded(exp(low)), None if high is None else _rounded(exp(min(high, 100)))


def _by_zscore(values: NDArray[np.float64], zscore: float) -> Bounds:
    median = float(np.median(values))
    distances = np.abs(values - median)
    deviation = _MAD_TO_DEVIATION * float(np.median(distances)) or _MEAN_TO_DEVIATION * float(np.mean(distances))
    if not deviation:
        return None, None
    return _rounded(median - zscore * deviation), _rounded(median + zscore * deviation)


def _rounded(bound: float) -> float:
    return float(f"{bound:.{_DIGITS}g}")


def _lengths(samples: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, samples), np.int64, len(samples))


def _matrix(samples: Sequence[bytes]) -> NDArray[np.uint8]:
    padded = b"".join([sample.ljust(SAMPLE_BYTES, _PADDING) for sample in samples])
    return np.frombuffer(padded, np.uint8).reshape(-1, SAMPLE_BYTES)


def _repetition(matrix: NDArray[np.uint8], samples: Sequence[bytes]) -> NDArray[np.float64]:
    blocks = np.sort(matrix.view("<u4"), axis=1)
    number = -(-_lengths(samples) // _BLOCK_BYTES)
    # blocks of padding, if there are any, are one more distinct block
    is_full = number == blocks.shape[1]
    distinct = np.count_nonzero(blocks[:, 1:] != blocks[:, :-1], axis=1) + is_full
    repetition: NDArray[np.float64] = (number - distinct) / np.maximum(number, 1)
    return repetition


def _symbols(matrix: NDArray[np.uint8], samples: Sequence[bytes]) -> NDArray[np.float64]:
    is_symbol = (matrix - np.uint8(0x21)) < np.uint8(0x5E)  # visible ASCII; differences of bytes wrap around
    is_letter = ((matrix | np.uint8(0x20)) - np.uint8(0x61)) < np.uint8(26)
    is_digit = (matrix - np.uint8(0x30)) < np.uint8(10)
    is_symbol &= ~(is_letter | is_digit)
    counts = np.bitwise_count(np.packbits(is_symbol, axis=1).view(np.uint64)).sum(axis=1, dtype=np.int64)
    characters = _lengths(samples)
    if rows := [row for row, sample in enumerate(samples) if not sample.isascii()]:
        counts[rows], characters[rows] = _unicode_symbols([samples[row].decode(errors="ignore") for row in rows])
    share: NDArray[np.float64] = counts / np.maximum(characters, 1)
    return share


def _unicode_symbols(texts: Sequence[str]) -> tuple[NDArray[np.int64], list[int]]:
    """Return the symbols and the characters of each of ``texts``, none of which is empty."""
    encoded = [text.encode("utf-16-le") for text in texts]
    starts = np.cumsum([0, *(len(units) // 2 for units in encoded[:-1])])
    is_symbol = _symbol_table()[np.frombuffer(b"".join(encoded), "<u2")]
    counts = np.add.reduceat(is_symbol, starts, dtype=np.int64)
    for row, (text, units) in enumerate(zip(texts, encoded, strict=True)):
        if len(units) != 2 * len(text):  # characters beyond 16 bits are two units, which are no symbols in the table
            counts[row] += sum(_is_symbol(character) for character in text if character > "\uffff")
    return counts, [*map(len, texts)]


@cache
def _symbol_table() -> NDArray[np.uint8]:
    return np.array([_is_symbol(chr(code)) for code in range(0x10000)], np.uint8)


def _is_symbol(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
