"""Streamed rows hold every document once in each epoch, whatever the files, the lanes, the ranks and the mixture."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.application.data.lane_reader import LanePlan
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking
from holdfast.domain.data.sample_order import RankShard
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.process_group import KeyValueStore
from holdfast.ports.tokenizer import Encoded
from tests.support.encoders import BYTES
from tests.support.streams import Plan, stream_of

LENGTH = 8
PACKINGS = [ConcatPacking(LENGTH), BestFitPacking(LENGTH, window=20), SlidingPacking(LENGTH, LENGTH)]
# some files are empty, some hold one document, one may hold more than all others together
SIZES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=9)
GIANTS = st.sampled_from([0, 0, 150])


def corpus(sizes, giant=0, name=""):
    """Return units of documents, each with a text of its own."""
    counts = [*sizes, giant] if giant else sizes
    return {
        f"{name}{unit:02}": [f"{name}{unit:02}.{number:03}" + "x" * (number * 7 % 19) for number in range(count)]
        for unit, count in enumerate(counts)
    }


def streams_of(parts, plan, weights=(1,), rows=4, ranks=1, encoder=BYTES):
    """Return the stream of each rank."""
    groups = MemoryProcessGroup.linked(ranks)
    mixture = Mixture(plan.seed, (Stage(0, weights),), 16)
    return [
        StreamedBatches(
            [TextReader(MemoryDataSource(part), encoder, RejectedRecords("stop")) for part in parts],
            mixture,
            plan,
            None,
            RankShard(rows, group.rank, ranks),
            workers=2,
            group=group,
        )
        for group in groups
    ]


def batches_of(streams, cursor=None, limit=None):
    """Return the batches of all ranks, which run at the same time, with those of one step together."""
    taken = lambda stream: list(islice(stream.batches(cursor or Cursor()), limit))  # noqa: E731
    if len(streams) == 1:
        return [(batch,) for batch in taken(streams[0])]
    with ThreadPoolExecutor(len(streams)) as pool:
        return list(zip(*pool.map(taken, streams), strict=True))


def rows_of(batches):
    """Return the rows of one step, over all ranks in any order."""
    return sorted(
        tuple(ids[:size].tolist())
        for batch in batches
        for ids, size in zip(batch.input_ids, batch.row_lengths, strict=True)
        if size
    )


@settings(deadline=None, max_examples=40)
@given(
    SIZES,
    GIANTS,
    st.sampled_from(PACKINGS),
    st.sampled_from([8, 60]),
    st.sampled_from([1, 2, 4, 16]),
    st.integers(1, 3),
)
def test_each_epoch_holds_every_document_once(sizes, giant, packing, window, lanes, epochs):
    """Whatever the sizes of the units and the lanes, no document comes a second time before all have come once."""
    units = corpus(sizes, giant)
    texts = [text for unit in units.values() for text in unit]
    if not texts:
        return
    whole = Counter(token for text in texts for token in [*text.encode(), 256])
    [stream] = streams_of([units], LanePlan(lanes, packing, window, 3, epochs))
    steps = batches_of([stream])
    rows = [row for step in steps for batch in step for row in _rows_in_order(batch)]
    found, ends = Counter(), []
    for number, row in enumerate(rows, 1):
        found.update(row)
        if found == Counter({token: count * (len(ends) + 1) for token, count in whole.items()}):
            ends.append(number)
    assert len(ends) == epochs
    assert ends[-1] == len(rows)
    padding = LENGTH * len(rows) - found.total()
    if isinstance(packing, ConcatPacking):
        assert padding < LENGTH * epochs  # one row that is not full in each


def _rows_in_order(batch):
    return [ids[:size].tolist() for ids, size in zip(batch.input_ids, batch.row_lengths, strict=True) if size]


@settings(deadline=None, max_examples=20)
@given(
    SIZES,
    GIANTS,
    st.sampled_from(PACKINGS),
    st.sampled_from([8, 60]),
    st.sampled_from([(2, 2), (4, 2), (4, 4)]),
    st.data(),
)
def test_ranks_share_the_same_samples(sizes, giant, packing, window, lanes_and_ranks, data):
    """Any number of ranks takes the rows of one process, step by step to the end, and goes on from any of its steps."""
    lanes, ranks = lanes_and_ranks
    plan, units = LanePlan(lanes, packing, window, 5, 2), corpus([3, *sizes], giant)
    alone = batches_of(streams_of([units], plan))
    together = batches_of(streams_of([units], plan, ranks=ranks))
    assert [rows_of(step) for step in together] == [rows_of(step) for step in alone]
    assert all(batch.cursor == step[0].cursor for step, ours in zip(alone, together, strict=True) for batch in ours)
    assert all(len({batch.num_rows for batch in step}) == 1 for step in together)
    cut = data.draw(st.integers(0, len(alone) - 1))
    rest = batches_of(streams_of([units], plan, ranks=ranks), alone[cut][0].cursor)
    assert [rows_of(step) for step in rest] == [rows_of(step) for step in alone[cut + 1 :]]
    again = batches_of(streams_of([units], plan), together[cut][0].cursor)
    assert [rows_of(step) for step in again] == [rows_of(step) for step in alone[cut + 1 :]]


@settings(deadline=None, max_examples=20)
@given(
    SIZES, SIZES, st.sampled_from(PACKINGS[:2]), st.sampled_from([1, 4]), st.sampled_from([(1, 1), (1, 10)]), st.data()
)
def test_mixtures_read_each_source_in_epochs(first, second, packing, lanes, weights, data):
    """In a mixture no document comes again before all of its source; the first source that ends, ends all."""
    epochs = 2
    parts = [corpus([2, *first], name="a"), corpus([2, *second], name="b")]
    plan = LanePlan(lanes, packing, 60, 1, epochs)
    steps = batches_of(streams_of(parts, plan, weights))
    rows = [row for step in steps for batch in step for row in _rows_in_order(batch)]
    sources, _ = Mixture(1, (Stage(0, weights),), 16).locate(np.arange(len(rows) + 1))
    ended = int(sources[-1])
    for source, units in enumerate(parts):
        whole = Counter(token for unit in units.values() for text in unit for token in [*text.encode(), 256])
        found = Counter(token for row, of in zip(rows, sources[:-1], strict=True) if of == source for token in row)
        most = max(-(-found[token] // count) for token, count in whole.items())
        least = min(found[token] // count for token, count in whole.items())
        assert most - least <= 1
        assert source != ended or found == Counter({token: count * epochs for token, count in whole.items()})
    cut = data.draw(st.integers(0, len(steps) - 1))
    rest = batches_of(streams_of(parts, plan, weights), steps[cut][0].cursor)
    assert [rows_of(step) for step in rest] == [rows_of(step) for step in steps[cut + 1 :]]


@settings(deadline=None, max_examples=20)
@given(SIZES, GIANTS, st.sampled_from([1, 2, 4]), st.integers(1, 3))
def test_a_stream_has_as_many_steps_as_a_cache(sizes, giant, lanes, epochs):
    """The same epochs of the same documents take as many steps streamed as from a cache of one shard, or one more."""
    units = corpus([2, *sizes], giant)
    plan = Plan("stream", LENGTH, 4, 3, epochs, packing="concat", lanes=lanes, shard_bytes=10**6)
    steps = [len(list(stream_of(units, replace(plan, mode=mode)).batches(Cursor()))) for mode in ("stream", "cache")]
    assert abs(steps[0] - steps[1]) <= 1


def test_samples_do_not_depend_on_the_size_of_batches():
    """Batches of other sizes hold the same rows in the same order."""
    units, plan = corpus([9, 1, 30, 4], 150), LanePlan(4, ConcatPacking(LENGTH), 60, 3, 2)
    rows = [
        [row for step in batches_of(streams_of([units], plan, rows=size)) for row in _rows_in_order(step[0])]
        for size in (1, 4, 64)
    ]
    assert rows[0] == rows[1] == rows[2]


def test_lanes_share_units_by_their_bytes():
    """While all lanes have rows, each batch takes from all of them; they end together where units are many."""
    units = corpus([(number * 37) % 23 for number in range(64)])
    [stream] = streams_of([units], LanePlan(4, ConcatPacking(LENGTH), 60, 3, 1), rows=4)
    cursors = [step[0].cursor for step in batches_of([stream])]
    ended = [sum(lane.taken < 0 for lane in cursor.lanes) for cursor in cursors]
    assert all(one <= two for one, two in pairwise(ended[:-1]))
    assert next(number for number, count in enumerate(ended) if count) > 0.8 * len(ended)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_reads_by_itself_what_it_is_not_told(rank):
    """Where a group carries no texts, each rank measures the others' lanes by itself, and takes the same rows."""
    units, plan = corpus([3, 9, 1], 60), LanePlan(2, ConcatPacking(LENGTH), 24, 5, 2)
    reader = TextReader(MemoryDataSource(units), BYTES, RejectedRecords("stop"))
    mixture = Mixture(plan.seed, (Stage(0, (1,)),), 16)
    stream = StreamedBatches([reader], mixture, plan, None, RankShard(4, rank, 2), workers=2)
    told = batches_of(streams_of([units], plan, ranks=2))
    assert [batch.input_ids.tolist() for batch in stream.batches(Cursor())] == [
        step[rank].input_ids.tolist() for step in told
    ]


class SilentStore(KeyValueStore):
    """Has no text, and counts how often one was looked for."""

    def __init__(self):
        self.asked = []

    def publish(self, key, text):
        pass

    def lookup(self, key):
        self.asked.append(key)

    def forget(self, key):
        pass


def test_a_rank_that_hears_nothing_waits_once_for_each_lane(monkeypatch):
    """What another rank does not tell is waited for once, then read here, and its rejections are not written again."""
    monkeypatch.setattr("holdfast.application.data.source_lanes._PATIENCE_SECONDS", 0.05)
    units, plan = {name: ["abc" * 9, 3, "de" * 9] for name in "pqrstuvw"}, LanePlan(4, ConcatPacking(LENGTH), 8, 5, 2)
    written, store = [], SilentStore()
    reader = TextReader(MemoryDataSource(units), BYTES, RejectedRecords("skip", written.append))
    mixture = Mixture(plan.seed, (Stage(0, (1,)),), 16)
    stream = StreamedBatches([reader], mixture, plan, None, RankShard(4, 0, 2), workers=2, group=store)
    batches = list(stream.batches(Cursor()))
    alone = StreamedBatches(
        [TextReader(MemoryDataSource(units), BYTES, RejectedRecords("skip"))],
        mixture,
        plan,
        None,
        RankShard(4),
        workers=2,
    )
    rows = [row for batch in alone.batches(Cursor()) for row in _rows_in_order(batch)]
    assert sum(len(_rows_in_order(batch)) for batch in batches) == -(-len(rows) // 2)
    assert len(store.asked) - len(set(store.asked)) < 200  # some hundred windows would be asked for again and again
    assert len(written) < len(units)  # those of this rank's lanes


def test_a_stream_that_begins_again_leaves_no_text_of_before():
    """After a roll-back the texts of the rows that were ahead are gone, so that they neither mislead nor add up."""
    plan = LanePlan(4, ConcatPacking(LENGTH), 24, 5, 2)
    streams = streams_of([corpus([30] * 8)], plan, ranks=2)
    texts = streams[0]._group._table.texts
    for _ in range(3):
        batches_of(streams, limit=4)
        assert texts
        for stream in streams:
            stream.batches(Cursor()).close()
        assert not texts


class RepeatingEncoder(DocumentEncoder):
    """Makes of the text ``number:size`` a document of so many times the number, of which no letter is stored."""

    def encode(self, records):
        numbers, sizes = np.array([record.text.split(":") for record in records], np.int64).T
        ids = np.repeat(numbers, sizes).astype(np.uint16)
        return Encoded(ids, np.cumsum([0, *sizes], dtype=np.int64))

    def fingerprint(self):
        return "repeating"


@st.composite
def large_units(draw):
    """Return units whose tokens are log-normal from 1 to a million, or nothing beside one of a million."""
    seed, spread = draw(st.integers(0, 1 << 30)), draw(st.sampled_from([0.5, 2.0, 4.0]))
    random = np.random.default_rng(seed)
    totals = np.exp(random.normal(7, spread, draw(st.integers(1, 24)))).clip(1, 10**6).astype(int).tolist()
    totals = sorted(totals)[: int(np.searchsorted(np.cumsum(sorted(totals)), 2 * 10**6))]  # a test ends some time
    totals = totals + [10**6] * draw(st.integers(0, 1)) or [1]
    units, number = {}, 0
    for unit, total in enumerate(random.permutation(totals).tolist()):
        cuts = random.integers(1, total + 1, draw(st.sampled_from([0, 3, 30])))
        sizes = np.diff(np.unique([0, *cuts, total])).tolist()
        units[f"{unit:02}"] = [f"{number + at}:{size}" for at, size in enumerate(sizes)]
        number += len(sizes)
    return units


def ids_of(steps):
    """Return the ids of each row that is not empty, one behind the other, and the sizes of the rows."""
    sizes = np.concatenate([batch.row_lengths for step in steps for batch in step])
    ids = [
        ids[:size]
        for step in steps
        for batch in step
        for ids, size in zip(batch.input_ids, batch.row_lengths, strict=True)
    ]
    return np.concatenate(ids), sizes[sizes > 0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    large_units(),
    st.sampled_from([ConcatPacking(512), BestFitPacking(512, window=200)]),
    st.sampled_from([2000, 1 << 17]),
    st.sampled_from([4, 8, 16]),
    st.integers(1, 3),
    st.data(),
)
def test_units_of_up_to_a_million_tokens_are_read_once_in_each_epoch(units, packing, window, lanes, epochs, data):
    """Any lanes give each document once in each epoch, and 2, 1, 4 and 2 ranks, one after another, the same rows."""
    texts = [text.split(":") for unit in units.values() for text in unit]
    whole = np.array([int(size) for _, size in texts])
    plan, encoder = LanePlan(lanes, packing, window, 5, epochs), RepeatingEncoder()
    alone = batches_of(streams_of([units], plan, rows=32, encoder=encoder))
    for steps in (alone, batches_of(streams_of([units], replace(plan, lanes=1), rows=32, encoder=encoder))):
        ids, sizes = ids_of(steps)
        assert len(ids) == whole.sum() * epochs
        ends = np.searchsorted(np.cumsum(sizes), whole.sum() * np.arange(1, epochs + 1))
        assert (np.cumsum(sizes)[ends] == whole.sum() * np.arange(1, epochs + 1)).all()  # a row ends each epoch
        for epoch in ids.reshape(epochs, -1):
            assert (np.bincount(epoch, minlength=len(whole)) == whole).all()
        if isinstance(packing, ConcatPacking):
            assert 512 * len(sizes) - len(ids) < 512 * epochs
    cursor, done = None, 0
    for ranks in (2, 1, 4, 2):
        limit = data.draw(st.integers(0, max(len(alone) // 3, 1)))
        steps = batches_of(streams_of([units], plan, rows=32, ranks=ranks, encoder=encoder), cursor, limit)
        assert [rows_of(step) for step in steps] == [rows_of(step) for step in alone[done : done + limit]]
        cursor, done = (steps[-1][0].cursor if steps else cursor), done + len(steps)
    rest = batches_of(streams_of([units], plan, rows=32, encoder=encoder), cursor)
    assert [rows_of(step) for step in rest] == [rows_of(step) for step in alone[done:]]


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(large_units(), st.sampled_from([1, 4, 16]), st.integers(1, 3))
def test_units_of_up_to_a_million_tokens_take_as_many_steps_as_a_cache(units, lanes, epochs):
    """However the tokens are spread over files, steps in both modes differ by one at most."""
    plan = Plan(
        "stream", 512, 32, 3, epochs, lanes=lanes, window=1 << 14, shard_bytes=10**8, encoder=RepeatingEncoder()
    )
    steps = [
        sum(1 for _ in stream_of(units, replace(plan, mode=mode)).batches(Cursor())) for mode in ("stream", "cache")
    ]
    assert abs(steps[0] - steps[1]) <= 1
