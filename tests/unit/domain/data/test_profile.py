"""Profiles of documents, and the sketches in them."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.frequent_tokens import MOST, FrequentTokens
from holdfast.domain.data.profile import (
    RELATIVE_ERROR,
    SHARES,
    STANDARD_ERROR,
    DistinctSketch,
    LogHistogram,
    Profile,
    ProfileBuilder,
    ProfileTotals,
    bounds_of,
    bucket_of,
)
from holdfast.domain.errors import DataError
from tests.support.profiles import documents, profile_of_documents


def as_bytes(profile):
    return json.dumps(profile.to_json(), sort_keys=True)


def tokens(counts):
    return FrequentTokens.of(np.array(counts, np.int64))


@given(value=st.integers(0, 2**53 - 1))
def test_the_middle_of_a_bucket_is_near_each_value(value):
    """A value lies in its bucket, and differs from the middle by at most the stated relative error."""
    first, end = bounds_of(int(bucket_of(np.array([value], np.int64))[0]))
    assert first <= value < end
    assert abs(value - (first + end - 1) / 2) <= RELATIVE_ERROR * value


def test_buckets_are_in_order_without_gaps():
    """Each bucket begins where the one before ends."""
    assert all(bounds_of(bucket)[1] == bounds_of(bucket + 1)[0] for bucket in range(1600))


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_quantiles_are_those_of_the_values(share):
    """A quantile differs from that of the sorted values by at most the relative error."""
    values = np.random.default_rng(0).lognormal(6, 1, 5000).astype(np.int64)
    exact = np.sort(values)[int(share * len(values))]
    assert LogHistogram.of(values).quantile(share) == pytest.approx(exact, rel=RELATIVE_ERROR)
    assert LogHistogram().quantile(share) is None


@pytest.mark.parametrize("number", [0, 1, 100, 5000, 200_000])
def test_distinct_documents_are_estimated(number):
    """Copies do not count, and the estimate is within four standard errors."""
    hashes = np.random.default_rng(number).integers(0, 2**64 - 1, number, dtype=np.uint64)
    estimate = DistinctSketch.of(np.concatenate([hashes, hashes])).estimate()
    assert abs(estimate - number) <= 4 * STANDARD_ERROR * number


def test_frequent_tokens_are_counted_and_their_error_is_bounded():
    """The count of each id, and what the shards that left it out may have had, enclose its occurrences."""
    counts = np.random.default_rng(0).integers(0, 50, (3, 2, 60))
    merged = sum((FrequentTokens.of(shard, 20) for shard in counts[1:]), FrequentTokens.of(counts[0], 20))
    exact = counts.sum(axis=(0, 1))
    found, missed = merged.of_ids(np.arange(60))
    assert (found.sum(axis=0) <= exact).all()
    assert (exact <= found.sum(axis=0) + missed).all()
    assert (found.sum(axis=0) < exact).any()
    assert merged.total == exact.sum()


def test_of_equal_counts_the_smaller_id_is_kept():
    """The choice among equally frequent ids is fixed, and ids that do not occur are left out."""
    assert FrequentTokens.of(np.array([[1, 1, 1, 0], [1, 1, 1, 0]]), 2).top(9) == [(0, 2), (1, 2)]
    assert tokens([[0, 3], [0, 0]]).top(9) == [(1, 3)]


def test_a_profile_counts_what_is_there():
    """Documents, bytes, characters, tokens and shares of the kinds of bytes are those of the texts."""
    builder = ProfileBuilder()
    texts = ["ab 1!", "ä"]
    builder.add(texts, np.arange(6, dtype=np.uint16), np.array([0, 4, 6]), np.array([0, 1], np.uint64))
    profile = builder.build({"en": 1}, {"c4.few": 3})
    assert profile.totals == ProfileTotals(2, 7, 6, 6)
    assert [profile.quantile(name, 0) for name in SHARES] == [0, 0, 0, 0, 0]
    largest = [profile.quantile(name, 0.9) for name in SHARES]
    assert largest == pytest.approx([0.4, 0.2, 0.2, 0.2, 1.0], rel=0.02)
    assert profile.quantile("bytes_per_token", 0.9) == pytest.approx(1.25, rel=0.02)
    assert profile.languages == {"en": 1}
    assert profile.rejects == {"c4.few": 3}


@settings(deadline=None, max_examples=8)
@given(cuts=st.lists(st.integers(0, 120), max_size=5), order=st.randoms(use_true_random=False))
def test_the_division_into_calls_has_no_effect(cuts, order):
    """Documents that are added some at a time, in any order, give the same bytes."""
    texts, ids, offsets, hashes = documents(3, 120)
    whole = ProfileBuilder()
    whole.add(texts, ids, offsets, hashes)
    spans = list(zip([0, *sorted(cuts)], [*sorted(cuts), 120], strict=True))
    order.shuffle(spans)
    parts = ProfileBuilder()
    for begin, end in spans:
        parts.add(texts[begin:end], ids, offsets[begin : end + 1], hashes[begin:end])
    assert as_bytes(parts.build()) == as_bytes(whole.build())


def test_profiles_merge_in_any_order():
    """Shards merge to the same bytes in any order and grouping, through JSON too."""
    shards = [profile_of_documents(seed, 60, rejects={"c4.short": seed}, languages={"de": 2}) for seed in range(5)]
    whole = Profile.merged(shards)
    for seed in range(5):
        mixed = random.Random(seed).sample(shards, 5)
        left = Profile.merged(mixed[:2]).merge(Profile.from_json(json.loads(as_bytes(Profile.merged(mixed[2:])))))
        assert as_bytes(left) == as_bytes(whole)
    assert whole.documents == 300
    assert whole.rejects == {"c4.short": 10}


def test_a_merged_profile_is_that_of_all_documents():
    """Merging adds up: with fewer ids than a shard keeps, the profile of two parts is that of the whole."""
    texts, ids, offsets, hashes = documents(0, 200)
    ids %= MOST - 1
    builders = [ProfileBuilder() for _ in range(3)]
    for builder, (begin, end) in zip(builders, [(0, 200), (0, 90), (90, 200)], strict=True):
        builder.add(texts[begin:end], ids, offsets[begin : end + 1], hashes[begin:end])
    whole, first, second = (builder.build() for builder in builders)
    assert as_bytes(first.merge(second)) == as_bytes(whole)


def test_a_profile_is_small():
    """The profile of a shard is a few kilobytes of JSON."""
    assert len(as_bytes(profile_of_documents(0, 1000))) < 20_000


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda record: None, "another version"),
        (lambda record: record | {"schema": 99}, "another version"),
        (lambda record: {key: value for key, value in record.items() if key != "distinct"}, "damaged"),
        (lambda record: record | {"distinct": "AAAA"}, "damaged"),
        (lambda record: record | {"frequent": record["frequent"] | {"counts": [[1], [1]]}}, "damaged"),
        (lambda record: record | {"histograms": {"tokens": {"buckets": [3, 0], "counts": [1, 1]}}}, "damaged"),
    ],
)
def test_a_profile_that_was_not_written_is_refused(spoil, message):
    """A record of another version, or one that is damaged, raises an error with a remedy."""
    record = json.loads(as_bytes(profile_of_documents(0, 20)))
    with pytest.raises(DataError, match=message):
        Profile.from_json(spoil(record))
