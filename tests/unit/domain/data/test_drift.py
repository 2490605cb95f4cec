"""Drift between profiles: planted drift is named, and sampling alone is not drift."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from holdfast.domain.data.drift import FEWEST, LIMITS, Level, Measure, compare, sentence_of, worst
from holdfast.domain.data.profile import Profile, ProfileTotals
from tests.support.profiles import profile_of_documents


@cache
def reference():
    return profile_of_documents(0, 1000, languages={"en": 1000})


def levels(other, first=None):
    return {figure.name: figure.level for figure in compare(first or reference(), other)}


@pytest.mark.parametrize(("number", "seeds"), [(FEWEST, 10), (150, 7), (600, 4)])
def test_two_samples_of_one_corpus_do_not_drift(number, seeds):
    """Whatever the sample and its size, the verdict on each pair of samples is none."""
    samples = [profile_of_documents(100 + seed, number) for seed in range(seeds)]
    for first, second in combinations(samples, 2):
        assert worst(compare(first, second)) == Level.NONE, sentence_of(compare(first, second))


@pytest.mark.slow
@pytest.mark.parametrize("number", [FEWEST, 100, 130, 250, 500, 1000])
def test_hundreds_of_samples_do_not_drift(number):
    """Of the comparisons of 40 samples with each other, none has a verdict but none."""
    samples = [profile_of_documents(1000 + seed, number) for seed in range(40)]
    drifted = [
        pair for pair in combinations(range(40), 2) if worst(compare(*(samples[each] for each in pair))) != "none"
    ]
    assert drifted == []


def test_samples_of_different_sizes_and_divisions_do_not_drift():
    """A small sample against a large one in many shards is the same corpus."""
    shards = Profile.merged(profile_of_documents(200 + seed, 80) for seed in range(12))
    assert worst(compare(reference(), shards)) == Level.NONE
    assert worst(compare(shards, profile_of_documents(300, 100))) == Level.NONE


@pytest.mark.parametrize("seed", range(1, 3))
def test_another_language_is_named(seed):
    """One tenth of the documents in another language moves tokens, bytes and languages, and not lengths in tokens."""
    languages = {"en": 900, "ru": 100}
    found = levels(profile_of_documents(seed, 1000, foreign=0.1, languages=languages))
    assert found["frequent_tokens"] != Level.NONE
    assert found["languages"] == found["non_ascii"] == Level.MAJOR
    assert found["tokens"] == Level.NONE


@pytest.mark.parametrize("seed", range(1, 3))
def test_doubled_lengths_are_named(seed):
    """Documents of twice the length move the lengths, and neither tokens nor shares."""
    found = levels(profile_of_documents(seed, 1000, factor=2))
    assert found["tokens"] == found["bytes"] == Level.MAJOR
    moved = {name for name, level in found.items() if level != Level.NONE}
    assert moved - {"bytes_per_token"} == {"tokens", "bytes"}  # which varies less between longer documents


def test_the_verdict_names_figure_and_distance():
    """The sentence names what moved with its level and distance, the worst first, or says that nothing did."""
    figures = compare(reference(), profile_of_documents(1, 1000, factor=2))
    assert sentence_of(figures).startswith("major drift: tokens a document (major, PSI 0.")
    assert sentence_of(compare(reference(), reference())) == "no drift in 10 figures"


def test_few_documents_are_not_judged():
    """With fewer documents than the stated number even a planted drift has no verdict."""
    assert worst(compare(reference(), profile_of_documents(1, FEWEST - 1, factor=2))) == Level.NONE
    assert worst(compare(reference(), profile_of_documents(1, FEWEST + 100, factor=2))) == Level.MAJOR


def test_profiles_without_documents_have_no_figures():
    """What neither profile has is not compared."""
    assert compare(Profile(), reference()) == []


def test_the_divergence_of_languages_follows_the_replaced_share():
    """Replacing 1 % of the documents gives about the limit of minor drift, 5 % that of major drift."""
    number = 10**6
    for share, limit in zip((0.01, 0.05), LIMITS[Measure.JENSEN_SHANNON], strict=True):
        before, after = (
            Profile(ProfileTotals(number), languages={"en": number}),
            Profile(ProfileTotals(number), languages={"en": int(number * (1 - share)), "de": int(number * share)}),
        )
        (figure,) = compare(before, after)
        assert figure.distance == pytest.approx(limit, rel=0.1)
        assert figure.moved in {"en", "de"}
        assert np.isfinite(figure.noise)
