import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from holdfast.application.data.shard_meta import (
    ShardDocuments,
    ShardMetaBuilder,
    packed,
    scores_of,
    total_drops,
    unpacked,
)
from holdfast.application.data.text_reader import TokenizedGroup
from holdfast.ports.data_source import Unit

UNITS = st.lists(
    st.lists(st.tuples(st.integers(0, 2**62), st.dictionaries(st.sampled_from("pq"), st.floats(-9, 9, width=32)))),
    max_size=4,
)


def group(documents):
    return TokenizedGroup(
        np.zeros(0, np.uint16),
        np.zeros(len(documents) + 1, np.int64),
        None,
        ends=[place + 1 for place, _ in documents],
        starts=[place for place, _ in documents],
        scores=[scores for _, scores in documents],
    )


@given(UNITS, st.integers(1, 3))
def test_each_document_keeps_its_unit_its_position_and_its_scores(units, size):
    """The description survives JSON, however the documents were grouped, and is equal for equal documents."""
    builder = ShardMetaBuilder()
    for number, documents in enumerate(units):
        builder.begin(Unit(f"unit {number}", 1, ""))
        for begin in range(0, len(documents), size):
            builder.add(group(documents[begin : begin + size]))
    meta = json.loads(json.dumps(builder.to_json()))
    found = ShardDocuments.of(meta)
    flat = [(f"unit {number}", place) for number, documents in enumerate(units) for place, _ in documents]
    assert [(found.units[number], place) for number, place in zip(found.numbers, found.positions, strict=True)] == flat
    for name in "pq":
        given_scores = [scores.get(name) for documents in units for _, scores in documents]
        scores = scores_of(meta, name)
        if any(score is not None for score in given_scores):
            assert [None if np.isnan(score) else score for score in scores.tolist()] == given_scores
        else:
            assert scores is None


@given(arrays.arrays(st.sampled_from([np.int64, np.float32]), st.integers(0, 50)))
def test_packed_values_come_back(values):
    """Packing loses nothing."""
    np.testing.assert_array_equal(unpacked(packed(values), values.dtype.type), values)


def test_shards_of_earlier_versions_have_no_documents_and_count_their_rejected_records():
    """A shard that was made before documents were described is still readable."""
    old = {"source_bytes": 1, "rejected": [{"unit": "a", "position": 3, "reason": "bad"}]}
    assert ShardDocuments.of(old) is None
    assert scores_of(old, "p") is None
    new = {"drops": {"length": 2, "unusable": 1}, "rejected": []}
    assert total_drops([old, new, {"rejected": []}]) == {"length": 2, "unusable": 2}
