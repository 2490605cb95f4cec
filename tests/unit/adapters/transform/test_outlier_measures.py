"""The measures of texts against slow references, and the bounds that a sample gives."""

from __future__ import annotations

import random
import unicodedata
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.transform.outlier_measures import fit_outliers, measure_texts, sample_of
from holdfast.domain.errors import DataError

pieces = st.sampled_from(
    ["a", "Z", "7", " ", "\n", "\0", "!", "~", "/", "ä", "\u2013", "“", "東", "、", "👍", "\U0001d504", "\U0010ffff"]
)
texts = st.one_of(
    st.lists(pieces, max_size=40).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.builds(lambda start, unit, times: start + unit * times, st.text(pieces), st.text(pieces), st.integers(0, 700)),
)


def repetition_of(text):
    sample = sample_of(text)
    blocks = [sample[start : start + 4] for start in range(0, len(sample), 4)]
    return (len(blocks) - len(set(blocks))) / max(len(blocks), 1)


def symbols_of(text):
    characters = sample_of(text).decode(errors="ignore")
    return sum(unicodedata.category(c)[0] in "PS" for c in characters) / max(len(characters), 1)


@given(st.lists(texts, max_size=6))
def test_measures_are_those_of_the_reference(batch):
    """Each measure of a batch equals a slow count of blocks, characters and bytes, text by text."""
    found = measure_texts(
        batch,
        ["length", "repetition", "symbols", "compression_ratio", "bytes_per_token"],
        lambda some: [text.count(" ") for text in some],
    )
    assert found["length"].tolist() == [len(text) for text in batch]
    assert found["repetition"].tolist() == [repetition_of(text) for text in batch]
    assert found["symbols"].tolist() == [symbols_of(text) for text in batch]
    samples = [sample_of(text) for text in batch]
    assert found["compression_ratio"].tolist() == [len(zlib.compress(s, 1)) / max(len(s), 1) for s in samples]
    spaces = [max(sample.decode(errors="ignore").count(" "), 1) for sample in samples]
    assert found["bytes_per_token"].tolist() == [len(s) / n for s, n in zip(samples, spaces, strict=True)]


@given(texts)
def test_a_sample_is_the_text_or_its_beginning_and_middle(text):
    """A sample is the whole text up to 512 bytes, else 256 bytes from the beginning and 256 or fewer after them."""
    sample, whole = sample_of(text), text.encode()
    if len(whole) <= 512:
        assert sample == whole
        return
    assert sample[:256] == whole[:256]
    assert 0 < len(sample) - 256 <= 256
    assert whole.find(sample[256:], 256) >= 256


@pytest.mark.parametrize("unit", ["ab", "word ", "äö", "東京、", "👍"])
def test_repeated_words_are_repetition(unit):
    """One word again and again is nearly all repetition, and random letters are none."""
    letters = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=2000))
    found = measure_texts([unit * 500, letters], ["repetition", "compression_ratio"])
    assert found["repetition"][0] > 0.9
    assert found["repetition"][1] < 0.02
    assert found["compression_ratio"][0] < 0.2
    assert found["compression_ratio"][1] > 0.6


def lengths(*numbers):
    return ["x" * number for number in numbers]


def test_a_zscore_bounds_the_distance_from_the_median():
    """The bounds are the median and z times 1.4826 times the median absolute deviation, on both sides."""
    shares = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7] * 4
    texts = ["!" * round(share * 10) + "a" * (10 - round(share * 10)) for share in shares]
    low, high = fit_outliers(texts, {"symbols": {"zscore": 2}})["symbols"]
    assert (low, high) == pytest.approx((0.4 - 2 * 1.4826 * 0.2, 0.4 + 2 * 1.4826 * 0.2))


def test_the_zscore_of_length_is_that_of_its_logarithm():
    """Lengths are skewed: the bounds lie as many times above the median as below it."""
    low, high = fit_outliers(lengths(*[10, 100, 1000] * 10), {"length": {"zscore": 1}})["length"]
    assert low * high == pytest.approx(100**2)
    assert high == pytest.approx(100 * 10**1.4826)


def test_equal_values_in_the_middle_have_bounds_and_all_equal_values_have_none():
    """If more than half of the values are equal the mean absolute deviation counts; if all are there are no bounds."""
    low, high = fit_outliers(lengths(*[100] * 30, 200), {"length": {"zscore": 6}})["length"]
    assert 1 < 100 - low < 50 < high < 200
    assert fit_outliers(lengths(*[100] * 30), {"length": {"zscore": 6}})["length"] == (None, None)


def test_quantiles_bound_the_share_of_the_sample():
    """The bounds are the quantiles of the sample, and 0 and 1 set none."""
    sample = lengths(*range(1, 102))
    assert fit_outliers(sample, {"length": {"quantiles": (0.1, 0.95)}})["length"] == (11, 96)
    assert fit_outliers(sample, {"length": {"quantiles": (0, 0.5)}})["length"] == (None, 51)
    assert fit_outliers(sample, {"length": {"quantiles": (0.5, 1)}})["length"] == (51, None)


def test_given_bounds_need_no_sample():
    """Bounds as numbers are kept as they are."""
    options = {"length": {"min": 5}, "symbols": {"max": 0.5}, "repetition": {"min": 0.1, "max": 0.2}}
    assert fit_outliers([], options) == {"length": (5, None), "symbols": (None, 0.5), "repetition": (0.1, 0.2)}


def test_a_small_sample_is_refused():
    """Bounds of fewer than 20 texts say nothing: the error has the numbers and the ways out."""
    with pytest.raises(DataError, match=r"outliers\.length .*at least 20 documents.* 19: set min and max") as caught:
        fit_outliers(lengths(*range(19)), {"length": {"zscore": 6}})
    assert "\n" not in str(caught.value)
    assert fit_outliers(lengths(*range(20)), {"length": {"zscore": 6}})["length"] != (None, None)


@settings(max_examples=25)
@given(st.lists(texts, min_size=20, max_size=30), st.floats(0.5, 8))
def test_bounds_are_numbers_around_the_median(sample, zscore):
    """Every measure of any texts has finite bounds with the median between them, or none."""
    measures = ["length", "repetition", "symbols", "compression_ratio"]
    values = measure_texts(sample, measures)
    for name, (low, high) in fit_outliers(sample, {name: {"zscore": zscore} for name in measures}).items():
        if low is None:
            assert high is None
            continue
        assert np.isfinite([low, high]).all()
        assert low <= max(np.median(values[name]), 1 if name == "length" else 0) * (1 + 1e-8)
        assert high >= np.median(values[name]) * (1 - 1e-8)
