import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.application.data.feed import BatchStream, Feed
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import DataError, StateError
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from tests.support.streams import MODES, Plan, batches_of, content, feed_of, stream_of, tokens_of

END = 256
TEXTS = st.text("abcdefgh ä", max_size=30)
CORPORA = st.dictionaries(st.sampled_from("pqrst"), st.lists(TEXTS, max_size=6), min_size=1).filter(
    lambda units: any(text for texts in units.values() for text in texts)
)
PLANS = st.builds(
    Plan,
    mode=st.sampled_from(MODES),
    length=st.integers(2, 12),
    rows=st.integers(1, 4),
    seed=st.integers(-5, 5),
    epochs=st.just(2),
    prefetch=st.sampled_from([0, 0, 1, 3]),
    packing=st.sampled_from(["concat", "best_fit", "sliding"]),
    window=st.sampled_from([1, 30, 200]),
    lanes=st.sampled_from([1, 1, 2, 3]),
    shard_bytes=st.sampled_from([1, 50, 10**6]),
)
each_mode = pytest.mark.parametrize("mode", MODES)


@settings(deadline=None)
@given(CORPORA, PLANS, st.data())
def test_the_batches_after_any_cursor_are_the_rest(units, plan, data):
    """A feed that starts at a batch's cursor yields exactly the batches that followed it, and does so once more."""
    batches = batches_of(feed_of(units, plan))
    cut = data.draw(st.integers(0, len(batches) - 1))
    rest = batches_of(feed_of(units, plan), batches[cut].cursor)
    assert [content(batch) for batch in rest] == [content(batch) for batch in batches[cut + 1 :]]
    if rest:
        again = batches_of(feed_of(units, plan), rest[0].cursor)
        assert [content(batch) for batch in again] == [content(batch) for batch in rest[1:]]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "sliding"])
@each_mode
def test_a_cut_at_every_batch_resumes(mode, packing):
    """Over two epochs, cut behind each batch and again behind the next, with batches made ahead: all the same."""
    units = {name: [f"{name} {number} " * (number + 2) for number in range(5)] for name in "abcdefghij"}
    plan = Plan(mode, 16, 3, epochs=2, prefetch=3, packing=packing, window=100, lanes=2, shard_bytes=200)
    expected = [content(batch) for batch in batches_of(feed_of(units, plan))]
    assert len(expected) > 20
    for cut in range(len(expected) - 1):
        (once,) = batches_of(feed_of(units, plan), expected[cut][1], limit=1)
        twice = batches_of(feed_of(units, plan), once.cursor, limit=2)
        assert [content(once), *map(content, twice)] == expected[cut + 1 : cut + 4]


@settings(deadline=None)
@given(CORPORA, PLANS)
def test_every_token_comes_exactly_once_an_epoch(units, plan):
    """In two epochs each document's tokens and its end-of-text come twice, no matter how they are shuffled."""
    plan = plan.with_(packing="concat" if plan.packing == "sliding" else plan.packing)
    batches = batches_of(feed_of(units, plan))
    texts = [text for unit in units.values() for text in unit if text]
    expected = Counter(token for text in texts for token in [*text.encode(), END] * plan.epochs)
    assert Counter(tokens_of(batches)) == expected
    assert sum(batch.num_tokens for batch in batches) == expected.total()


@settings(deadline=None)
@given(CORPORA, PLANS.filter(lambda plan: plan.packing != "sliding"), st.sampled_from([2, 3]), st.integers(1, 3))
def test_ranks_share_what_one_rank_would_read(units, plan, ranks, micro_batches):
    """Whatever the number of ranks, threads and batches ahead, together they read each sample of the order once."""
    units = {f"{name}{copy}": [*texts, "x"] for name, texts in units.items() for copy in range(6)}
    plan = plan.with_(rows=ranks * micro_batches, lanes=6, epochs=None)
    alone = [content(batch)[0] for batch in batches_of(feed_of(units, plan), limit=6)]
    expected = [sorted(map(str, zip(*arrays, strict=True))) for arrays in alone]
    shares = [
        batches_of(feed_of(units, plan.with_(rank=rank, ranks=ranks, workers=rank + 1, prefetch=rank)), limit=6)
        for rank in range(ranks)
    ]
    for number, whole in enumerate(expected):
        found = [str(row) for share in shares for row in zip(*content(share[number])[0], strict=True)]
        assert sorted(found) == whole


@each_mode
def test_the_order_follows_the_seed(mode):
    """Rows of long documents are mixed, in one order for one seed and in another for another."""
    units = {"a": ["a" * 100, "b" * 100]}
    orders = []
    for seed in (1, 1, 2):
        plan = Plan(mode, 10, 2, seed, epochs=1, window=1000)
        orders.append([row[0] for batch in batches_of(feed_of(units, plan)) for row in batch.input_ids.tolist()])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


@settings(deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 0.9), PLANS)
def test_held_out_documents_are_never_trained_on(seed, fraction, plan):
    """Each document is either in the training batches or held out, copies included."""
    units = {name: [f"{name}{number} says so" for number in range(10)] for name in "abc"}
    units["copies"] = [*units["a"], *units["b"]]
    holdout = Holdout(fraction, seed)
    kept = [text for unit in units.values() for text in unit if not holdout.holds_text(text)]
    plan = plan.with_(epochs=1, packing="concat")
    trained = tokens_of(batches_of(feed_of(units, plan, holdout))) if kept else []
    assert Counter(trained) == Counter(token for text in kept for token in [*text.encode(), END])


@each_mode
def test_epochs_differ_in_their_order(mode):
    """Each epoch reads everything once, in an order of its own."""
    units = {f"{number:02}": [f"text {number:02}"] for number in range(20)}
    plan = Plan(mode, length=8, rows=1, epochs=2, window=8)
    rows = [batch.input_ids.tobytes() for batch in batches_of(feed_of(units, plan))]
    first, second = rows[:20], rows[20:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != sorted(first)


@each_mode
def test_data_without_an_end_repeat(mode):
    """Without a number of epochs batches come for ever."""
    feed = feed_of({"a": ["abc", "de"]}, Plan(mode, 4, 2, seed=0))
    batches = list(islice(iter(feed.next, None), 100))
    feed.close()
    assert {batch.num_rows for batch in batches} == {2}
    assert batches[-1].cursor.samples == 200


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("epochs", [None, 1])
@pytest.mark.parametrize(
    ("units", "fraction"), [({"a": []}, 0.0), ({"a": [""], "b": ["", ""]}, 0.0), ({"a": ["held out"]}, 1.0)]
)
@each_mode
def test_a_corpus_without_text_is_an_error(mode, units, fraction, epochs, prefetch):
    """Data with nothing to train on raise ``DataError`` and are not read over and over."""
    plan = Plan(mode, 4, 2, seed=0, epochs=epochs, prefetch=prefetch)
    with pytest.raises(DataError, match=r"no(ne of the .*)? text|no document is left"):
        feed_of(units, plan, Holdout(fraction, seed=0)).next()


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_bad_record_is_an_error_where_it_would_be(prefetch):
    """All windows before a record that cannot be used come first, then its ``DataError``, in the thread that asks."""
    plan = Plan("stream", 8, 1, seed=0, prefetch=prefetch, window=8)
    feed = feed_of({"a": ["abcdefg", "hijklmn", 3, "never read"]}, plan)
    assert [bytes(feed.next().input_ids[0, :-1].tolist()) for _ in range(2)] == [b"abcdefg", b"hijklmn"]
    with pytest.raises(DataError, match="document 2"):
        feed.next()
    feed.close()


@each_mode
def test_bad_records_are_left_out_and_counted_once(mode):
    """With ``skip`` a record that cannot be used is written down once, however often it is read."""
    written = []
    rejections = RejectedRecords("skip", written.append)
    units = {"a": ["abcdefg", 3, "hijklmn"], "b": [4, "opq"]}
    plan = Plan(mode, 8, 1, epochs=2, window=8)
    batches = batches_of(feed_of(units, plan, rejections=rejections))
    texts = ("abcdefg", "hijklmn", "opq")
    assert Counter(tokens_of(batches)) == Counter(token for text in texts for token in [*text.encode(), END] * 2)
    assert sorted((record["unit"], record["position"]) for record in written) == [("a", 1), ("b", 0)]
    assert all(record["reason"] for record in written)
    resumed = RejectedRecords("skip", written.append, known=written.copy())
    batches_of(feed_of(units, plan, rejections=resumed))
    assert (len(written), resumed.count) == (2, 2)


@pytest.mark.parametrize("prefetch", [0, 2])
@each_mode
def test_the_supply_tells_what_was_read_and_left_out_so_far(mode, prefetch):
    """Behind each batch the bytes and the rejected records are those so far: all of them at the end of the data."""
    units = {name: [f"{name} says {number}" for number in range(9)] + [3] for name in "abcdefghijkl"}
    size = sum(len(text) for texts in units.values() for text in texts[:-1])
    feed = feed_of(units, Plan(mode, 8, 2, epochs=1, window=8, prefetch=prefetch), rejections=RejectedRecords("skip"))
    told = []
    while feed.next() is not None:
        told.append(feed.supply)
    told.append(feed.supply)
    feed.close()
    for before, after in pairwise(told):
        assert 0 < before.bytes_read <= after.bytes_read
        assert before.rejected <= after.rejected
    assert (told[0].rejected < 12) == (told[0].bytes_read < size) == (mode == "stream")
    assert (told[-1].bytes_read, told[-1].read_retries, told[-1].rejected) == (size, 0, 12)


@settings(deadline=None, max_examples=50)
@given(
    CORPORA,
    PLANS.map(lambda plan: plan.with_(prefetch=plan.prefetch or 2)),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=12),
)
def test_batches_are_the_same_however_depth_and_threads_change(units, plan, turns):
    """Turning prefetch and threads between any two batches changes no batch, cursor or end."""
    expected = [content(batch) for batch in batches_of(feed_of(units, plan))]
    feed = feed_of(units, plan)
    feed.seek(Cursor())
    found = []
    for prefetch, threads in cycle(turns):
        feed.prefetch = prefetch
        if feed.threads:
            feed.threads = threads
        assert (feed.prefetch, feed.threads) == (prefetch, threads if plan.mode == "stream" else 0)
        batch = feed.next()
        if batch is None:
            break
        found.append(content(batch))
    feed.close()
    assert found == expected


def test_more_threads_read_more_lanes_at_a_time():
    """Threads that are added while batches are made read beside those that wait; no more than lanes are of use."""
    gate, reading = threading.Event(), threading.Semaphore(0)

    class Waiting(ForwardingDataSource):
        def read(self, unit, start=None):
            reading.release()
            gate.wait(60)
            yield from super().read(unit, start)

    units = {f"{number}": ["abcdefgh" * 9] for number in range(6)}
    feed = feed_of(Waiting(MemoryDataSource(units)), Plan("stream", 8, 2, lanes=3, workers=1, prefetch=1))
    assert (feed.threads, feed.max_threads) == (1, 3)
    feed.seek(Cursor())
    assert reading.acquire(timeout=10)
    assert not reading.acquire(timeout=0.05)
    feed.threads = 3
    assert reading.acquire(timeout=10)
    assert reading.acquire(timeout=10)
    gate.set()
    assert feed.next() is not None
    feed.close()


@dataclass
class Slowly:
    """Makes each batch of ``stream`` take ``seconds`` of the time ``now``, which goes on with nothing else."""

    stream: BatchStream
    seconds: float
    now: float = 10.0

    def interrupt(self):
        self.stream.interrupt()

    def batches(self, cursor):
        for batch in self.stream.batches(cursor):
            self.now += self.seconds
            yield batch


def test_the_supply_tells_the_latest_wait():
    """The wait is that for the batch that came last; one that was pushed back makes nobody wait."""
    slowly = Slowly(stream_of({"a": ["abcdefgh" * 9]}, Plan()), 0.25)
    feed = Feed(slowly, prefetch=0, clock=lambda: slowly.now)
    batch = feed.next()
    assert feed.supply.wait_seconds == 0.25
    feed.push_back(batch)
    feed.next()
    assert feed.supply.wait_seconds == 0.0
    assert feed.supply.bytes_read == feed.supply.rejected == 0
    feed.close()


def test_the_supply_tells_how_many_batches_are_ready():
    """Once the queue is full, taking a batch leaves one less in it, or as many as before if one came meanwhile."""
    feed = feed_of({"a": ["abcdefgh" * 9]}, Plan(prefetch=3))
    feed.seek(Cursor())
    deadline = time.monotonic() + 60
    while feed.supply.batches_ready < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert feed.supply.batches_ready == 3
    feed.next()
    assert feed.supply.batches_ready in {2, 3}
    feed.close()


def test_a_checkpoint_of_another_number_of_lanes_is_refused():
    """Lanes that do not fit the data are a sentence, not a wrong order."""
    with pytest.raises(StateError, match="lanes"):
        batches_of(feed_of({"a": ["abc"]}, Plan("stream")), Cursor(1, (LanePosition(),) * 3))


@pytest.mark.parametrize("prefetch", [0, 2])
@each_mode
def test_a_batch_that_is_pushed_back_is_the_next(mode, prefetch):
    """The same batch comes again, then the one behind it; a new place forgets it."""
    feed = feed_of({"a": ["abcdefgh" * 9]}, Plan(mode, 4, 2, seed=0, prefetch=prefetch))
    first = feed.next()
    feed.push_back(first)
    assert feed.next() is first
    second = feed.next()
    feed.push_back(second)
    feed.seek(Cursor())
    assert content(feed.next()) == content(first)
    assert content(feed.next()) == content(second)
    feed.close()


@each_mode
def test_a_closed_feed_has_no_thread(mode):
    """``close`` ends what makes batches ahead, twice is harmless, and seeking starts a single new one."""
    before = set(threading.enumerate())

    def num_threads(name):
        return sum(name in thread.name for thread in set(threading.enumerate()) - before)

    feed = feed_of({"a": ["abcdefgh" * 9]}, Plan(mode, 4, 2, seed=0, prefetch=2))
    for _ in range(3):
        feed.seek(Cursor())
    assert num_threads("prefetch") == 1
    feed.close()
    feed.close()
    deadline = time.monotonic() + 60
    while num_threads("holdfast") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_threads("holdfast") == 0


@each_mode
def test_finite_data_stay_ended(mode):
    """After the last batch there is none, however often it is asked for."""
    feed = feed_of({"a": ["abc"]}, Plan(mode, 4, 2, seed=0, epochs=1, prefetch=1))
    assert feed.next().num_tokens == 4
    assert [feed.next(), feed.next()] == [None, None]
    feed.close()


def test_streams_shuffle_units_anew_in_each_epoch():
    """Each epoch deals every unit to some lane once, in an order of its own that the seed decides."""
    source = MemoryDataSource({f"{number:02}": [f"text {number:02}"] for number in range(20)})
    orders = []
    for seed in (1, 1, 2):
        stream = stream_of(source, Plan("stream", 8, 1, seed, epochs=2, window=8))
        orders.append([batch.input_ids.tobytes() for batch in stream.batches(Cursor())])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0][:20]) == sorted(orders[0][20:])
