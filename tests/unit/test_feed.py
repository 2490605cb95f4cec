import threading
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.data_source.memory import MemoryDataSource
from adapters.tokenizer.memory import MemoryTokenizer
from application.documents import stream_documents
from application.feed import Feed, FeedPlan
from domain.cursor import Cursor
from domain.errors import DataError
from domain.holdout import Holdout

END = 256
TEXTS = st.text("abcdefgh ä", max_size=30)
CORPORA = st.dictionaries(st.sampled_from("pqrst"), st.lists(TEXTS, max_size=6), min_size=1).filter(
    lambda units: any(text for texts in units.values() for text in texts)
)
PLANS = st.builds(
    FeedPlan,
    sequence_length=st.integers(2, 12),
    rows=st.integers(1, 4),
    seed=st.integers(-5, 5),
    epochs=st.just(2),
    prefetch=st.sampled_from([0, 0, 1, 3]),
    shuffle_tokens=st.sampled_from([0, 30, 200]),
)
NOTHING_HELD_OUT = Holdout(0.0, seed=0)


def feed_of(units, plan, holdout=NOTHING_HELD_OUT):
    return Feed(MemoryDataSource(units), MemoryTokenizer(), holdout, plan)


def batches_of(feed, cursor=None):
    """Return the batches from ``cursor`` on to the end of finite data."""
    feed.seek(cursor or Cursor())
    try:
        return list(iter(feed.next, None))
    finally:
        feed.close()


def content(batch):
    """Return all that a batch says, comparable with ``==``."""
    arrays = (batch.input_ids, batch.position_ids, batch.document_ids, batch.loss_mask)
    return [array.tolist() for array in arrays], batch.cursor


def documents_in(batches):
    """Return the texts in ``batches``, whose rows are in the order of packing."""
    tokens = np.concatenate([batch.input_ids[batch.document_ids >= 0] for batch in batches]).tolist()
    assert tokens[-1] == END
    texts, current = [], []
    for token in tokens:
        if token == END:
            texts.append(bytes(current).decode())
            current = []
        else:
            current.append(token)
    return texts


@settings(deadline=None)
@given(CORPORA, PLANS, st.data())
def test_the_batches_after_any_cursor_are_the_rest(units, plan, data):
    """A feed that starts at a batch's cursor yields exactly the batches that followed it."""
    batches = batches_of(feed_of(units, plan))
    cut = data.draw(st.integers(0, len(batches) - 1))
    rest = batches_of(feed_of(units, plan), batches[cut].cursor)
    assert [content(batch) for batch in rest] == [content(batch) for batch in batches[cut + 1 :]]


@settings(deadline=None)
@given(CORPORA, PLANS)
def test_every_token_comes_exactly_once_an_epoch(units, plan):
    """In two epochs each document's tokens and its end-of-text come twice, no matter how they are shuffled."""
    batches = batches_of(feed_of(units, plan))
    texts = [text for unit in units.values() for text in unit if text]
    expected = Counter(token for text in texts for token in [*text.encode(), END] * plan.epochs)
    consumed = Counter(token for batch in batches for token in batch.input_ids[batch.document_ids >= 0].tolist())
    assert consumed == expected
    assert sum(batch.num_tokens for batch in batches) == expected.total()


@settings(deadline=None)
@given(CORPORA, PLANS)
def test_shuffling_moves_rows_and_changes_none(units, plan):
    """Rows shuffled in windows are the very rows of packing, in another order."""
    straight = FeedPlan(plan.sequence_length, plan.rows, plan.seed, plan.epochs, prefetch=0)
    rows, shuffled = (
        [tuple(row) for batch in batches_of(feed_of(units, chosen)) for row in batch.input_ids.tolist()]
        for chosen in (straight, plan)
    )
    assert sorted(rows) == sorted(shuffled)


def test_shuffling_follows_the_seed():
    """Rows of long documents are mixed, in one order for one seed and in another for another."""
    units = {"a": ["a" * 100, "b" * 100]}
    orders = []
    for seed in (1, 1, 2):
        plan = FeedPlan(10, 2, seed, epochs=1, prefetch=0, shuffle_tokens=1000)
        orders.append([row[0] for batch in batches_of(feed_of(units, plan)) for row in batch.input_ids.tolist()])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


@settings(deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 0.9), st.integers(2, 40))
def test_held_out_documents_are_never_trained_on(seed, fraction, length):
    """Each document is either in the training batches or held out, copies included."""
    units = {name: [f"{name}{number} says so" for number in range(10)] for name in "abc"}
    units["copies"] = [*units["a"], *units["b"]]
    holdout = Holdout(fraction, seed)
    texts = [text for unit in units.values() for text in unit]
    kept = [text for text in texts if not holdout.holds(text)]
    plan = FeedPlan(length, 1, seed, epochs=1, prefetch=0)  # a row at a time is not shuffled
    trained = documents_in(batches_of(feed_of(units, plan, holdout))) if kept else []
    assert sorted(trained) == sorted(kept)


def test_units_are_shuffled_anew_in_each_epoch():
    """Each epoch reads every unit once, in an order of its own that the seed decides."""
    source = MemoryDataSource({f"{number:02}": [f"text {number:02}"] for number in range(20)})
    orders = []
    for seed in (1, 1, 2):
        documents = stream_documents(source, Cursor(), seed=seed, epochs=2, wanted=lambda _: True)
        orders.append([document.text for document in documents])
    assert orders[0] == orders[1] != orders[2]
    first, second = orders[0][:20], orders[0][20:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != sorted(first)


def test_data_without_an_end_repeat():
    """Without a number of epochs batches come for ever, each of full rows."""
    feed = feed_of({"a": ["abc", "de"]}, FeedPlan(4, 2, seed=0, prefetch=0))
    batches = list(islice(iter(feed.next, None), 100))
    assert {(batch.num_rows, batch.num_tokens) for batch in batches} == {(2, 8)}
    assert batches[-1].cursor.epoch > 50


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("epochs", [None, 1])
@pytest.mark.parametrize(
    ("units", "fraction"), [({"a": []}, 0.0), ({"a": [""], "b": ["", ""]}, 0.0), ({"a": ["held out"]}, 1.0)]
)
def test_a_corpus_without_text_is_an_error(units, fraction, epochs, prefetch):
    """Data with nothing to train on raise ``DataError`` and are not read over and over."""
    feed = feed_of(units, FeedPlan(4, 2, seed=0, epochs=epochs, prefetch=prefetch), Holdout(fraction, seed=0))
    with pytest.raises(DataError, match=r"none of the \d files"):
        feed.next()
    feed.close()


def test_a_corpus_that_becomes_empty_is_an_error():
    """A resume in mid-epoch of data whose documents are gone ends with the next epoch."""
    feed = feed_of({"a": [], "b": []}, FeedPlan(4, 2, seed=0, prefetch=0))
    feed.seek(Cursor(epoch=3, unit=1, position=0))
    with pytest.raises(DataError, match="none of the 2 files"):
        feed.next()


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_a_bad_record_is_an_error_where_it_would_be(prefetch):
    """All batches before a record that cannot be read come first, then its ``DataError``, in the thread that asks."""
    feed = feed_of({"a": ["abcdefg", "hijklmn", 3, "never read"]}, FeedPlan(8, 1, seed=0, prefetch=prefetch))
    assert [bytes(feed.next().input_ids[0, :-1].tolist()) for _ in range(2)] == [b"abcdefg", b"hijklmn"]
    with pytest.raises(DataError, match="document 2"):
        feed.next()
    feed.close()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_that_is_pushed_back_is_the_next(prefetch):
    """The same batch comes again, then the one behind it; a new place forgets it."""
    feed = feed_of({"a": ["abcdefgh" * 9]}, FeedPlan(4, 2, seed=0, prefetch=prefetch))
    first = feed.next()
    feed.push_back(first)
    assert feed.next() is first
    second = feed.next()
    feed.push_back(second)
    feed.seek(Cursor())
    assert content(feed.next()) == content(first)
    assert content(feed.next()) == content(second)
    feed.close()


def test_a_closed_feed_has_no_thread():
    """``close`` ends what makes batches ahead, twice is harmless, and seeking starts a single new one."""
    feed = feed_of({"a": ["abcdefgh" * 9]}, FeedPlan(4, 2, seed=0, prefetch=2))
    for _ in range(3):
        feed.seek(Cursor())
    assert _num_prefetching() == 1
    feed.close()
    feed.close()
    assert _num_prefetching() == 0


def _num_prefetching():
    return sum("prefetch" in thread.name for thread in threading.enumerate())


def test_finite_data_stay_ended():
    """After the last batch there is none, however often it is asked for."""
    feed = feed_of({"a": ["abc"]}, FeedPlan(4, 2, seed=0, epochs=1, prefetch=1))
    assert feed.next().num_tokens == 4
    assert [feed.next(), feed.next()] == [None, None]
    feed.close()
