"""Loss masks on the way from the encoder to the batches: each token keeps the bit that its id has by ``CAPITALS``."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.data.pretokenize import Prepared, PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.shard_meta import SupervisedTokens, supervised_tokens
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.holdout import Holdout
from tests.support.encoders import BYTES, CAPITALS
from tests.support.streams import MODES, Plan, batches_of, content, feed_of, held_out_of

TEXTS = st.text("abcDEF ", max_size=30).filter(lambda text: not text or not text.replace(" ", "D").islower())
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
    packing=st.sampled_from(["concat", "best_fit", "sliding"]),
    window=st.sampled_from([1, 30, 200]),
    lanes=st.sampled_from([1, 1, 2, 3]),
    shard_bytes=st.sampled_from([1, 50, 10**6]),
    encoder=st.just(CAPITALS),
)


def expected_mask(batch):
    """Return the loss mask that follows from the ids alone: no small letter, and no first token of a piece."""
    is_small = (ord("a") <= batch.input_ids) & (batch.input_ids <= ord("z"))
    return ~is_small & (batch.position_ids > 0)


@settings(deadline=None)
@given(CORPORA, PLANS, st.data())
def test_each_token_keeps_its_mask_whatever_row_it_comes_to(units, plan, data):
    """Rows that packing cuts, shuffles and deals have the mask of their tokens, also after any resume."""
    batches = batches_of(feed_of(units, plan))
    for batch in batches:
        assert batch.loss_mask.tolist() == expected_mask(batch).tolist()
        assert batch.num_targets == np.count_nonzero(batch.loss_mask)
    cut = data.draw(st.integers(0, len(batches) - 1))
    rest = batches_of(feed_of(units, plan), batches[cut].cursor)
    assert [content(batch) for batch in rest] == [content(batch) for batch in batches[cut + 1 :]]


@settings(deadline=None)
@given(CORPORA, PLANS)
def test_a_mask_changes_no_token_and_no_order(units, plan):
    """The rows under a mask are those without one, token for token."""
    masked, plain = (batches_of(feed_of(units, plan.with_(encoder=each))) for each in (CAPITALS, BYTES))
    assert [batch.input_ids.tolist() for batch in masked] == [batch.input_ids.tolist() for batch in plain]
    assert [batch.cursor for batch in masked] == [batch.cursor for batch in plain]
    assert all(batch.supervised is None for batch in plain)


@settings(deadline=None)
@given(CORPORA, st.integers(2, 12), st.integers(1, 60))
def test_held_out_documents_keep_their_mask(units, length, max_tokens):
    """The held-out batches have the mask of their tokens, also of a document that the limit cuts."""
    held_out = held_out_of(units, Plan(length=length, encoder=CAPITALS), Holdout(1.0, seed=1), max_tokens)
    for batch in held_out.batches:
        assert batch.loss_mask.tolist() == expected_mask(batch).tolist()


def prepare(units, cache, encoder, **options):
    reader = TextReader(MemoryDataSource(units), encoder, RejectedRecords("skip"))
    return PrepareTokens(reader, cache, RejectedRecords("skip"), **options).run()


@settings(deadline=None)
@given(CORPORA, st.sampled_from([1, 50, 10**6]))
def test_a_cache_counts_the_tokens_that_are_trained_on(units, shard_bytes):
    """Each shard counts its supervised tokens and all by unit, and the preparation tells their sum."""
    cache = MemoryTokenCache()
    prepared = prepare(units, cache, CAPITALS, shard_bytes=shard_bytes)
    found = {}
    for shard in cache.shards():
        meta = json.loads(json.dumps(cache.meta(shard)))
        found |= supervised_tokens(meta) or {}
    for name, texts in units.items():
        documents = [[*text.encode(), 256] for text in texts if text]
        targets = sum(not ord("a") <= token <= ord("z") for document in documents for token in document[1:])
        if documents:
            assert found[name] == SupervisedTokens(targets, sum(map(len, documents)))
    assert prepared.supervised_tokens == sum(each.supervised for each in found.values())


def test_a_cache_without_masks_counts_none():
    """Where all tokens are trained on, nothing is stored about it, and a sum counts them as supervised."""
    cache = MemoryTokenCache()
    prepared = prepare({"a": ["some text"]}, cache, BYTES)
    assert prepared.supervised_tokens is None
    assert all("supervised" not in cache.meta(shard) for shard in cache.shards())
    masked = prepare({"a": ["Some text"]}, MemoryTokenCache(), CAPITALS)
    assert Prepared.total([prepared, masked]).supervised_tokens == prepared.tokens + masked.supervised_tokens
    assert Prepared.total([prepared, prepared]).supervised_tokens is None


@pytest.mark.parametrize("group", [1, 10, None])
def test_a_record_that_the_encoder_refuses_is_a_bad_record(group):
    """It is rejected with its place and the encoder's reason, and takes no neighbor with it, mask included."""
    encoder = MemoryDocumentEncoder(MemoryTokenizer(), untrained=b"abc")
    options = {"group_characters": group} if group else {}
    source, rejected = MemoryDataSource({"unit": ["aX", "abc", "Yb"]}), []
    reader = TextReader(source, encoder, RejectedRecords("skip"), **options)
    groups = list(reader.tokens(source.units()[0], rejected=rejected.append))
    assert [token for each in groups for token in each.ids.tolist()] == [*b"aX", 256, *b"Yb", 256]
    assert [bit for each in groups for bit in each.loss_mask.tolist()] == [False, True, True, True, False, True]
    assert [end for each in groups for end in each.ends] == [1, 3]
    reason = "unit: the document at position 1 has no token that is trained on: leave it out"
    assert [(record["position"], record["reason"]) for record in rejected] == [(1, reason)]
