"""Which source each sample comes from."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.errors import ConfigurationError

weights = st.integers(0, 20) | st.integers(0, 10**15)
seeds = st.integers(-(2**63), 2**64 - 1)


def weighings(sources):
    return st.lists(weights, min_size=sources, max_size=sources).filter(any).map(tuple)


@st.composite
def mixtures(draw):
    number, block = draw(st.integers(1, 7)), draw(st.integers(1, 40))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 12 * block), max_size=3)))]
    stages = tuple(Stage(start, draw(weighings(number))) for start in starts)
    return Mixture(draw(seeds), stages, block)


@settings(deadline=None)
@given(mixture=mixtures(), blocks=st.integers(1, 20))
def test_each_source_is_read_in_order_without_gaps(mixture, blocks):
    """A source's ordinals are 0, 1, 2 and so on with the samples, through all blocks and stages."""
    sources, ordinals = mixture.locate(np.arange(blocks * mixture.block))
    assert sources.dtype == ordinals.dtype == np.int64
    for source in range(mixture.num_sources):
        mine = ordinals[sources == source]
        assert mine.tolist() == list(range(len(mine)))


@settings(deadline=None)
@given(mixture=mixtures(), data=st.data())
def test_each_sample_is_located_by_itself(mixture, data):
    """Whatever samples are asked for, in whatever order and company, each is where it is among all of them."""
    samples = np.array(data.draw(st.lists(st.integers(0, 20 * mixture.block - 1), max_size=30)), np.int64)
    everything = mixture.locate(np.arange(20 * mixture.block))
    for found, expected in zip(mixture.locate(samples), everything, strict=True):
        assert found.dtype == np.int64
        assert found.tolist() == expected[samples].tolist()


@settings(deadline=None)
@given(mixture=mixtures(), blocks=st.integers(0, 20))
def test_quotas_are_what_blocks_hold(mixture, blocks):
    """At the end of each block, and at the start of each stage, the quotas say how many samples each source gave."""
    last = mixture.stages[-1].start
    for end in (*(stage.start for stage in mixture.stages), last + blocks * mixture.block):
        sources, _ = mixture.locate(np.arange(end))
        counts = np.bincount(sources, minlength=mixture.num_sources)
        assert mixture.quotas(end) == tuple(counts.tolist())


@settings(deadline=None)
@given(weights=st.integers(1, 30).flatmap(weighings), first=st.integers(0, 10**13))
def test_quotas_are_near_their_ideal(weights, first):
    """At every sample quotas sum to it, never sink, and are less than 1.7 off, with up to three sources less than 1."""
    mixture, bound = Mixture(0, (Stage(0, weights),)), Fraction(1 if len(weights) <= 3 else "1.7")
    before = mixture.quotas(first)
    for samples in range(first + 1, first + 60):
        quotas = mixture.quotas(samples)
        assert sum(quotas) == samples
        assert all(0 <= now - then <= 1 for now, then in zip(quotas, before, strict=True))
        ideals = [Fraction(samples * weight, sum(weights)) for weight in weights]
        assert all(abs(quota - ideal) < bound for quota, ideal in zip(quotas, ideals, strict=True))
        before = quotas


@settings(deadline=None)
@given(mixture=mixtures(), blocks=st.integers(1, 5))
def test_a_stage_begins_exactly_where_it_says(mixture, blocks):
    """From a stage's start on its weights hold alone, as if it were the first; until then the stage before it."""
    for number, stage in enumerate(mixture.stages):
        behind = (*(later.start for later in mixture.stages[number + 1 :]), stage.start + blocks * mixture.block)
        end = min(behind)
        alone = Mixture(mixture.seed, (Stage(0, stage.weights),), mixture.block)
        begun = np.subtract(mixture.quotas(end), mixture.quotas(stage.start))
        assert tuple(begun.tolist()) == alone.quotas(end - stage.start)
        given_by = set(mixture.locate(np.arange(stage.start, end))[0].tolist())
        assert all(stage.weights[source] for source in given_by)


def test_a_rare_source_keeps_its_share():
    """A source with a thousandth of the weight gives a thousandth, though less than one sample a block."""
    mixture = Mixture(0, (Stage(0, (999, 1)),), block=100)
    sources, _ = mixture.locate(np.arange(100_000))
    assert (sources == 1).sum() == 100


def test_sources_are_mixed_within_a_block():
    """Inside a block no source keeps to a part, and blocks and seeds differ in which samples are whose."""
    mixture = Mixture(0, (Stage(0, (1, 1)),))
    sources = mixture.locate(np.arange(2048))[0]
    first, second = sources[:1024], sources[1024:]
    assert 200 < first[:512].sum() < 312
    assert 400 < (first == second).sum() < 624
    assert 400 < (first == Mixture(1, mixture.stages).locate(np.arange(1024))[0]).sum() < 624


def test_one_source_needs_no_mixing():
    """With one source a sample is its own ordinal, and what is returned is the caller's to change."""
    samples = np.array([5, 0, 6 * 10**10])
    sources, ordinals = Mixture(0, (Stage(0, (3,)),)).locate(samples)
    assert sources.tolist() == [0, 0, 0]
    assert ordinals.tolist() == samples.tolist()
    ordinals += 1
    assert samples.tolist() == [5, 0, 6 * 10**10]


@pytest.mark.parametrize(
    ("stages", "block", "words"),
    [
        ((), 4, "must start at sample 0"),
        ((Stage(4, (1,)),), 4, "must start at sample 0"),
        ((Stage(0, (1,)),), 0, "blocks of at least 1"),
        ((Stage(0, (1,)), Stage(8, (1,)), Stage(4, (1,))), 4, "after the one before"),
        ((Stage(0, (1,)), Stage(0, (1,))), 4, "after the one before"),
        ((Stage(0, (1, 2)), Stage(4, (1,))), 4, "stage 1 has the weights"),
        ((Stage(0, (1, -1)),), 4, "none below 0"),
        ((Stage(0, (0, 0)),), 4, "not all 0"),
        ((Stage(0, ()),), 4, "not all 0"),
    ],
)
def test_impossible_mixtures_are_refused(stages, block, words):
    """Stages off the blocks, out of order, or with weights that do not fit are refused with a sentence."""
    with pytest.raises(ConfigurationError, match=words):
        Mixture(0, stages, block)


def test_mixtures_are_those_of_earlier_versions():
    """A run resumes with the mixture that it began with."""
    mixture = Mixture(7, (Stage(0, (5, 3, 1)), Stage(1 << 20, (1, 1, 98))))
    digests = []
    for start in (0, (1 << 20) - 500, 60_000_000_000):
        located = np.concatenate(mixture.locate(np.arange(start, start + 1000)))
        digests.append(sha256(located.astype("<i8").tobytes()).hexdigest()[:16])
    assert digests == ["0ee90446b56f4018", "b16c34f89479bda6", "eccac388de9acdf7"]
    assert mixture.quotas(60_000_000_001) == (600572056, 600339040, 58799088905)
