"""The documents that are traced are those in the batches, without the documents that are excluded."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.adapters.token_source.memory import MemoryTokenSource
from holdfast.application.data.lane_reader import LanePlan
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.application.data.trace_samples import CachedTracer, StreamTracer
from holdfast.bootstrap.stages.prepare.data_streams import cached_batches
from holdfast.domain.data.batch import NO_POSITION
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.exclusion import NO_EXCLUSION, Exclusion
from holdfast.domain.data.holdout import Holdout, hash_of
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.sample_order import Growth, RankShard
from tests.support.encoders import BYTES
from tests.support.streams import MODES, Plan, packing_of

END = 256
BATCHES = 5
TEXTS = st.text("abcdefgh ä", min_size=1, max_size=40)
# each lane has a unit, and no unit is held out as a whole: otherwise a stream without an end looks for rows forever
CORPORA = st.fixed_dictionaries({name: st.lists(TEXTS, min_size=1, max_size=4) for name in "pqrs"})
PLANS = st.builds(
    Plan,
    mode=st.sampled_from(MODES),
    length=st.integers(2, 12),
    rows=st.sampled_from([2, 4]),
    seed=st.integers(0, 5),
    packing=st.sampled_from(["concat", "best_fit", "sliding"]),
    window=st.sampled_from([1, 30, 200]),
    lanes=st.sampled_from([2, 4]),
    shard_bytes=st.sampled_from([1, 50, 10**6]),
    ranks=st.sampled_from([1, 2]),
).map(lambda plan: replace(plan, ranks=1) if plan.mode == "stream" else plan)


def streams_of(corpora, plan, excluded=NO_EXCLUSION, holdout=None):
    """Return the stream of batches of each rank, for a mixture of ``corpora`` in equal parts."""
    holdout = holdout or Holdout(0.0, 0)
    mixture = Mixture(plan.seed, (Stage(0, (1,) * len(corpora)),), 8)
    readers = [TextReader(MemoryDataSource(each), BYTES, RejectedRecords("stop")) for each in corpora]
    shares = [RankShard(plan.rows, rank, plan.ranks) for rank in range(plan.ranks)]
    if plan.mode == "stream":
        lanes = LanePlan(plan.lanes, packing_of(plan), plan.window, plan.seed, plan.epochs, excluded)
        wanted = (lambda hashes: ~holdout.holds(hashes)) if holdout.fraction else None
        return [StreamedBatches(readers, mixture, lanes, wanted, share, workers=2) for share in shares]
    caches = []
    for reader in readers:
        caches.append(MemoryTokenCache())
        PrepareTokens(reader, caches[-1], RejectedRecords("stop"), shard_bytes=plan.shard_bytes, workers=1).run()
    packing = packing_of(plan)
    return [
        cached_batches(caches, mixture, packing, holdout, share, plan.epochs, excluded=excluded) for share in shares
    ]


def tracer_of(stream, corpora, cursors=()):
    """Return the tracer of a stream, with numbers for names."""
    names = [str(number) for number in range(len(corpora))]
    return StreamTracer(stream, names, cursors) if isinstance(stream, StreamedBatches) else CachedTracer(stream, names)


def batches_of(streams, cursor=None, limit=BATCHES):
    """Return the batches of each rank, with those of one step together."""
    running = [stream.batches(cursor or Cursor()) for stream in streams]
    try:
        return list(islice(zip(*running, strict=True), limit))
    finally:
        for batches in running:
            batches.close()


def rows_of(batches, plan):
    """Return the pieces of each sample in order, as tuples of tokens, over all ranks, which take contiguous rows."""
    assert plan.mode == "cache" or plan.ranks == 1
    return [row for of_ranks in batches for batch in of_ranks for row in _rows_in(batch)]


def _rows_in(batch):
    return [
        [tuple(ids[pieces == piece].tolist()) for piece in range(pieces.max() + 1)]
        for ids, pieces in zip(batch.input_ids, batch.document_ids, strict=True)
    ]


def traced_rows(spans, corpora, num_rows):
    """Return the pieces that ``spans`` say each row has, from the texts of their documents."""
    rows = [[] for _ in range(num_rows)]
    for sample, number, document, position, first, size, column in zip(
        spans.sample, spans.unit, spans.document, spans.position, spans.first_token, spans.num_tokens, spans.column,
        strict=True,
    ):  # fmt: skip
        source, unit = spans.units[number]
        text = corpora[int(source)][unit][position]
        assert document == hash_of(text)
        tokens = [*text.encode(), END]
        assert column == sum(map(len, rows[sample]))
        rows[sample].append(tuple(tokens[first : first + size]))
        assert len(rows[sample][-1]) == size
    return rows


@settings(deadline=None, max_examples=25)
@given(st.lists(CORPORA, min_size=1, max_size=2), PLANS, st.data())
def test_the_spans_are_the_pieces_in_the_batches(corpora, plan, data):
    """Whatever is mixed, packed, streamed and shared, a span names the document and the tokens that are in a batch."""
    holdout = Holdout(data.draw(st.sampled_from([0.0, 0.3])), 1)
    if holdout.fraction:
        corpora = [{name: [*texts, *"abcdefgh"] for name, texts in units.items()} for units in corpora]
    streams = streams_of(corpora, plan, holdout=holdout)
    batches = batches_of(streams)
    whole = streams_of(corpora, plan, holdout=holdout)[plan.ranks - 1]
    cursor = Cursor.join([batch.cursor for batch in batches[1]])
    tracer = tracer_of(whole, corpora, [cursor] if plan.mode == "stream" else [])
    expected = rows_of(batches, plan)
    spans = tracer.spans(0, len(expected))
    assert traced_rows(spans, corpora, len(expected)) == expected
    begin = data.draw(st.integers(0, len(expected)))
    part, ids = tracer.texts(begin, len(expected))
    there = spans.sample >= begin
    for one, other in ((part.document, spans.document), (part.sample, spans.sample), (part.epoch, spans.epoch)):
        assert one.tolist() == other[there].tolist()
    assert [tuple(each.tolist()) for each in ids] == [piece for row in expected[begin:] for piece in row]


@settings(deadline=None, max_examples=25)
@given(st.lists(CORPORA, min_size=1, max_size=2), PLANS, st.data())
def test_excluded_documents_are_not_in_the_batches_and_nothing_else_moves(corpora, plan, data):
    """The rows are those without an exclusion, but for the pieces of excluded documents, which are gone."""
    texts = sorted({text for units in corpora for texts in units.values() for text in texts})
    out = {hash_of(text) for text in data.draw(st.lists(st.sampled_from(texts), max_size=3))}
    batches = batches_of(streams_of(corpora, plan, Exclusion.of(out)), limit=3)
    num_rows = plan.rows * len(batches)
    tracer = tracer_of(streams_of(corpora, replace(plan, ranks=1), Exclusion.of(out))[0], corpora)
    spans = tracer.spans(0, num_rows)
    assert traced_rows(spans, corpora, num_rows) == rows_of(batches_of(streams_of(corpora, plan), limit=3), plan)
    kept = spans.at(~np.isin(spans.document, np.array(sorted(out), np.uint64), kind="sort"))
    assert traced_rows(kept, corpora, num_rows) == rows_of(batches, plan)


@settings(deadline=None, max_examples=15)
@given(st.lists(CORPORA, min_size=1, max_size=2), PLANS, st.data())
def test_a_document_is_found_in_all_samples_that_hold_it(corpora, plan, data):
    """Looking for documents gives their spans, and no others."""
    tracer = tracer_of(streams_of(corpora, replace(plan, ranks=1))[0], corpora)
    texts = sorted({text for units in corpora for texts in units.values() for text in texts})
    wanted = np.array([hash_of(text) for text in data.draw(st.lists(st.sampled_from(texts), max_size=2))], np.uint64)
    spans = tracer.spans(0, 23)
    expected = spans.at(np.isin(spans.document, wanted, kind="sort"))
    found = tracer.find(wanted, 23)
    for name in ("sample", "document", "position", "first_token", "num_tokens", "epoch"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert [found.units[unit] for unit in found.unit] == [expected.units[unit] for unit in expected.unit]


def test_documents_that_were_added_later_are_traced_in_the_epochs_that_read_them():
    """Data that have grown are traced by the size that they had in each epoch."""
    old, new = {"a": ["old " * 9, "older " * 5]}, {"b": ["new " * 7]}
    caches = []
    for units in (old, new):
        caches.append(MemoryTokenCache())
        reader = TextReader(MemoryDataSource(units), BYTES, RejectedRecords("stop"))
        PrepareTokens(reader, caches[-1], RejectedRecords("stop")).run()
    plan = Plan(length=8, rows=2)
    growth = Growth((1,))
    stream = cached_batches(
        caches, Mixture(1, (Stage(0, (1,)),)), packing_of(plan), Holdout(0.0, 0), RankShard(2), 3, growth
    )
    batches = [[batch] for batch in stream.batches(Cursor())]
    expected = rows_of(batches, plan)
    spans = CachedTracer(stream, ["0"]).spans(0, 10**6)
    assert traced_rows(spans, [old | new], len(expected)) == expected
    is_new = np.array([unit == "b" for _, unit in spans.units])[spans.unit]
    assert set(spans.epoch[is_new].tolist()) == {1, 2}
    assert set(spans.epoch.tolist()) == {0, 1, 2}


def test_tokens_without_a_record_of_their_documents_have_shards_for_units():
    """Where tokens do not say where they come from, the shard is named, and the position is unknown."""
    cache = MemoryTokenCache()
    reader = TextReader(MemoryDataSource({"a": ["some text"]}), BYTES, RejectedRecords("stop"))
    PrepareTokens(reader, cache, RejectedRecords("stop")).run()
    source = MemoryTokenSource({shard.name: cache.open(shard) for shard in cache.shards()})
    plan = Plan(length=16, rows=1)
    stream = cached_batches([source], Mixture(0, (Stage(0, (1,)),)), packing_of(plan), Holdout(0.0, 0), RankShard(1), 1)
    spans = CachedTracer(stream, ["tokens"]).spans(0, 5)
    assert spans.units == (("tokens", "000000"),)
    assert (spans.position.tolist(), spans.document.tolist()) == ([NO_POSITION], [hash_of("some text")])


@pytest.mark.parametrize("mode", MODES)
def test_samples_behind_the_end_of_the_data_hold_nothing(mode):
    """Finite data end for the tracer where they end for the run, and nothing before the first sample is read."""
    corpora, plan = [{"a": ["a few words"], "b": ["more"], "c": ["b"], "d": ["c"]}], Plan(mode, lanes=2, epochs=1)
    stream = streams_of(corpora, plan)[0]
    num_tokens = sum(batch.num_tokens for batch in stream.batches(Cursor()))
    tracer = tracer_of(stream, corpora)
    assert tracer.spans(0, 10**6).num_tokens.sum() == num_tokens
    assert len(tracer.spans(10**5, 10**6)) == 0
    assert len(tracer.find(np.array([1], np.uint64), 10**6)) == 0
