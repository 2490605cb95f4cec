"""The order in which samples and units are read."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.sample_order import EarlierSize, RankShard, SampleOrder, choose_lanes, unit_order
from holdfast.domain.errors import ConfigurationError

seeds = st.integers(-(2**63), 2**64 - 1)


def single(size, seed=0):
    return SampleOrder((size,), Mixture(seed, (Stage(0, (1,)),)))


@st.composite
def orders(draw):
    sizes = tuple(draw(st.lists(st.integers(1, 60), min_size=1, max_size=4)))
    weighings = st.tuples(*(st.integers(0, 9) for _ in sizes)).filter(any)
    stages = (Stage(0, draw(weighings)), Stage(draw(st.integers(1, 100)), draw(weighings)))
    return SampleOrder(sizes, Mixture(draw(seeds), stages, block=16))


@st.composite
def fleets(draw):
    """Draw how many ranks, micro-batches a step, samples a micro-batch, workers a rank, and steps."""
    return tuple(draw(st.integers(1, 5)) for _ in range(5))


def what_ranks_read(order, start, fleet):
    """Simulate the steps of a fleet from a sample on: its workers read whole micro-batches, ranks take them in turn."""
    ranks, accumulation, size, workers, steps = fleet
    batch = ranks * accumulation * size
    work = [[[] for _ in range(workers)] for _ in range(ranks)]
    for rank in range(ranks):
        share = RankShard(batch, rank, ranks)
        samples = [sample for step in range(steps) for sample in share.of(start + step * batch)]
        for number in range(steps * accumulation):
            part = np.array(samples[number * size : (number + 1) * size])
            work[rank][number % workers].append(np.transpose(order.locate(part)).tolist())
    steps_read = []
    for step in range(steps):
        for rank in range(ranks):
            for number in range(step * accumulation, (step + 1) * accumulation):
                steps_read += work[rank][number % workers].pop(0)
    return steps_read, start + steps * batch


@settings(deadline=None)
@given(order=orders(), fleets=st.lists(fleets(), min_size=1, max_size=4))
def test_the_order_does_not_know_who_reads(order, fleets):
    """Ranks, accumulation, micro-batches and workers, and changing all of them in mid-run, leave the order as it is."""
    read, sample = [], 0
    for fleet in fleets:
        more, sample = what_ranks_read(order, sample, fleet)
        read += more
    assert read == np.transpose(order.locate(np.arange(sample))).tolist()


@settings(deadline=None)
@given(order=orders())
def test_each_epoch_of_a_source_is_complete(order):
    """Each source's samples, in order, are whole epochs one after the other, each with every record once."""
    sources, epochs, records = order.locate(np.arange(600))
    for source, size in enumerate(order.sizes):
        mine, theirs = records[sources == source], epochs[sources == source]
        assert theirs.tolist() == [place // size for place in range(len(mine))]
        for epoch in range(len(mine) // size):
            assert sorted(mine[epoch * size : (epoch + 1) * size].tolist()) == list(range(size))
        rest = mine[len(mine) // size * size :].tolist()
        assert len(set(rest)) == len(rest)


@settings(deadline=None)
@given(order=orders(), data=st.data())
def test_each_sample_is_found_by_itself(order, data):
    """Whatever samples are asked for, in whatever company, each is what it is in the whole, as int64."""
    samples = np.array(data.draw(st.lists(st.integers(0, 599), max_size=30)), np.int64)
    for found, expected in zip(order.locate(samples), order.locate(np.arange(600)), strict=True):
        assert found.dtype == np.int64
        assert found.tolist() == expected[samples].tolist()


def test_epochs_sources_and_seeds_have_orders_of_their_own():
    """No two of two sources, three epochs and two seeds read five hundred records in the same order."""
    seen = set()
    for seed in (0, 1):
        order = SampleOrder((500, 500), Mixture(seed, (Stage(0, (1, 1)),)))
        sources, epochs, records = order.locate(np.arange(3072))
        seen |= {tuple(records[(sources == s) & (epochs == e)].tolist()) for s in (0, 1) for e in (0, 1, 2)}
    assert len(seen) == 12


@settings(deadline=None)
@given(order=orders(), epochs=st.integers(0, 4))
def test_data_end_before_a_source_is_read_once_too_often(order, epochs):
    """The total is the first sample that would read a source for more than the epochs wanted."""
    total = order.total(epochs)
    _, numbers, _ = order.locate(np.arange(total + 1))
    assert (numbers[:total] < epochs).all()
    assert numbers[total] == epochs


@given(size=st.integers(1, 10**12), epochs=st.integers(0, 1000))
def test_one_source_ends_with_its_epochs(size, epochs):
    """With one source the data are its records, as often as there are epochs."""
    assert single(size).total(epochs) == size * epochs


@pytest.mark.parametrize(
    ("sizes", "stages", "words"),
    [
        ((1, 2), (Stage(0, (1,)),), "2 sources, but weights for 1"),
        ((1, 0), (Stage(0, (1, 0)), Stage(1024, (1, 1))), "source 1 has a weight, but no records"),
    ],
)
def test_sizes_must_fit_the_mixture(sizes, stages, words):
    """A source without a weight, or with a weight but no records, is refused with a sentence."""
    with pytest.raises(ConfigurationError, match=words):
        SampleOrder(sizes, Mixture(0, stages))


def test_an_empty_source_is_called_by_its_name():
    """Where a mixture has names for its sources, the one without records is named and not numbered."""
    mixture = Mixture(0, (Stage(0, (1, 1)),), names=("books", "wiki"))
    with pytest.raises(ConfigurationError, match="source 'wiki' has a weight, but no records"):
        SampleOrder((1, 0), mixture)


def test_an_empty_source_may_rest():
    """A source without records is no mistake where its weight is 0."""
    order = SampleOrder((4, 0), Mixture(0, (Stage(0, (1, 0)),)))
    assert order.locate(np.arange(100))[0].tolist() == [0] * 100
    assert order.total(2) == 8


def test_a_batch_is_divided_evenly_or_not_at_all():
    """A batch that the ranks cannot share evenly is refused with a sentence that names both."""
    with pytest.raises(ConfigurationError, match=r"4 processes cannot share optimizer\.batch_size=10 evenly"):
        RankShard(10, 0, 4)


def test_shares_lie_in_the_order_of_ranks():
    """Each rank takes one run of the batch, the ranks one after the other."""
    assert [list(RankShard(6, rank, 3).of(12)) for rank in range(3)] == [[12, 13], [14, 15], [16, 17]]
    assert list(RankShard(3).of(9)) == [9, 10, 11]


def test_the_order_is_the_one_of_earlier_versions():
    """A run resumes in the order that it began with, however far it was, whatever version of the code began it."""
    plans = [
        (single(10), 0),
        (single(1_100_000_000, seed=-3), 63_000_000_000),
        (SampleOrder((1000, 77, 10**9), Mixture(2**64 - 1, (Stage(0, (10, 1, 89)),))), 60_000_000_000),
        (SampleOrder((50, 5000), Mixture(1, (Stage(0, (1, 1)), Stage(256, (1, 9))), block=64)), 0),
    ]
    digests = []
    for order, start in plans:
        located = np.concatenate(order.locate(np.arange(start, start + 1000)))
        digests.append(sha256(located.astype("<i8").tobytes()).hexdigest()[:16])
    assert digests == ["ca771c847c1aab9f", "8cab2c63c477afc0", "56e6ebfdaed28d20", "a51764f190b17598"]


@given(num_units=st.integers(1, 10**6))
def test_lanes_have_units_to_shuffle(num_units):
    """There are as many lanes as leave each at least four units, from nine on sixteen, and at least one."""
    lanes = choose_lanes(num_units)
    choices = (1, 2, 4, 8, 24, 48, 96, 192)
    assert lanes in choices
    needed = {choice: choice * (4 if choice <= 8 else 16) for choice in choices}
    assert lanes == 1 or needed[lanes] <= num_units
    assert all(needed[more] > num_units for more in choices if more > lanes)


@settings(deadline=None)
@given(num_units=st.integers(0, 300), seed=seeds, epoch=st.integers(0, 10_000))
def test_every_unit_comes_once(num_units, seed, epoch):
    """An epoch's order is a permutation of the units, int64."""
    order = unit_order(num_units, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(num_units))


@settings(deadline=None)
@given(seed=seeds, epoch=st.integers(0, 10_000))
def test_seeds_and_epochs_have_unit_orders_of_their_own(seed, epoch):
    """Another seed, or the next epoch, reads a hundred units in another order."""
    chosen = ((seed, epoch), (seed + 1, epoch), (seed, epoch + 1))
    assert len({tuple(unit_order(100, *choice).tolist()) for choice in chosen}) == 3


def test_the_unit_order_is_the_one_of_earlier_versions():
    """A streamed run resumes in the order of units that it began with."""
    assert unit_order(10, 0, 0).tolist() == [2, 9, 5, 4, 7, 1, 8, 6, 3, 0]
    assert unit_order(10, -1, 3).tolist() == [9, 4, 0, 5, 6, 8, 3, 1, 2, 7]


@st.composite
def grown(draw):
    """Return an order of a source that grew once or twice, with the sizes and the epochs that it had them from."""
    sizes = sorted(draw(st.lists(st.integers(1, 60), min_size=2, max_size=3)))
    untils = sorted(draw(st.lists(st.integers(0, 4), min_size=len(sizes) - 1, max_size=len(sizes) - 1)))
    past = tuple(EarlierSize(until, size) for until, size in zip(untils, sizes[:-1], strict=True))
    return SampleOrder((sizes[-1],), Mixture(draw(seeds), (Stage(0, (1,)),)), past), [0, *untils], sizes


@given(grown())
def test_a_source_that_grew_deals_old_records_before_and_all_after(given):
    """Each epoch is one of the source as it was or is: before its growth the samples are those of the small source."""
    order, begins, sizes = given
    _, epochs, records = order.locate(np.arange(order.start_of(7)))
    for epoch in range(7):
        size = [size for begin, size in zip(begins, sizes, strict=True) if begin <= epoch][-1]
        assert sorted(records[epochs == epoch].tolist()) == list(range(size))
        plain = SampleOrder((size,), order.mixture)
        of_plain = plain.locate(np.arange(size * epoch, size * (epoch + 1)))[2]
        assert records[epochs == epoch].tolist() == of_plain.tolist()
    assert order.total(7) == order.start_of(7) == len(records)


@given(grown(), st.integers(0, 400))
def test_the_next_epoch_is_one_of_which_nothing_was_read(given, samples):
    """The next epoch is the first one that begins at a sample or after it."""
    order, _, _ = given
    epoch = order.next_epoch(samples)
    assert order.start_of(epoch) >= samples
    assert epoch == 0 or order.start_of(epoch - 1) < samples
