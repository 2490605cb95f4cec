import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.adapters.transform.memory import MemoryTransform
from holdfast.application.data.record_pipeline import RecordPipeline
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.holdout import Holdout, hash_of
from holdfast.domain.errors import DataError
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from holdfast.ports.transform import Record
from tests.support.encoders import BYTES, WordsEncoder

END = 256
ITEMS = st.lists(st.one_of(st.text("abcä€ ", max_size=12), st.just(3)), max_size=12)


def read(items, start=None, *, on_error="skip", wanted=None, group=None, transforms=()):
    """Return the groups of a unit with ``items``, the rejected records, and the error that ended it."""
    source, rejections = MemoryDataSource({"unit": items}), RejectedRecords(on_error)
    options = {"group_characters": group} if group else {}
    reader = TextReader(source, BYTES, rejections, RecordPipeline(transforms), **options)
    groups, rejected, error = [], [], None
    try:
        groups.extend(reader.tokens(source.units()[0], start, wanted=wanted, rejected=rejected.append))
    except DataError as ended:
        error = ended
    return groups, rejected, error


def documents_of(groups):
    """Return each document's ids, hash and end."""
    return [
        (group.tokens.ids[first:last].tolist(), int(number), place)
        for group in groups
        for first, last, number, place in zip(
            group.tokens.offsets[:-1], group.tokens.offsets[1:], group.tokens.hashes, group.ends, strict=True
        )
    ]


def expected_of(items, first=0):
    return [
        ([*text.encode(), END], hash_of(text), place + 1)
        for place, text in enumerate(items)
        if place >= first and isinstance(text, str) and text
    ]


@given(ITEMS, st.sampled_from([1, 5, 20, None]), st.integers(0, 12))
def test_every_document_comes_with_its_end_its_hash_and_its_place(items, group, first):
    """However the documents are grouped and wherever reading starts, each has its tokens, one end and its hash."""
    groups, rejected, error = read(items, first, group=group)
    assert error is None
    assert documents_of(groups) == expected_of(items, first)
    assert [record["position"] for record in rejected] == [
        place for place, item in enumerate(items) if place >= first and not isinstance(item, str)
    ]


@given(ITEMS, st.sampled_from([1, 5, None]))
def test_reading_on_behind_a_group_yields_the_rest(items, group):
    """The last end of a group is where the documents behind it begin."""
    groups, _, _ = read(items, group=group)
    for number, each in enumerate(groups, 1):
        rest, _, _ = read(items, each.ends[-1])
        assert documents_of(rest) == documents_of(groups[number:])


@given(ITEMS, st.sampled_from([1, 5, None]))
def test_documents_before_a_bad_record_come_first(items, group):
    """With ``stop`` all in front of the first bad record is yielded, in mid-group too, then its ``DataError``."""
    groups, _, error = read(items, on_error="stop", group=group)
    bad = next((place for place, item in enumerate(items) if not isinstance(item, str)), None)
    assert documents_of(groups) == expected_of(items[:bad])
    assert (error is None) == (bad is None)
    assert bad is None or f"document {bad} is" in str(error)


@given(ITEMS, st.sampled_from([1, 5, None]), st.integers(0, 99))
def test_unwanted_documents_are_left_out_and_their_places_kept(items, group, seed):
    """Only wanted documents come, and reading from the end of one yields exactly the wanted ones behind it."""
    holdout = Holdout(0.5, seed)
    groups, _, _ = read(items, wanted=holdout.holds, group=group)
    assert documents_of(groups) == [
        each for each in expected_of(items) if holdout.holds(np.array([each[1]], np.uint64))
    ]
    for number, each in enumerate(groups, 1):
        for skipped, end in enumerate(each.ends, 1):
            rest, _, _ = read(items, end, wanted=holdout.holds)
            assert documents_of(rest) == documents_of(groups)[len(documents_of(groups[: number - 1])) + skipped :]


class RememberingTokenizer(ForwardingTokenizer):
    """Encodes as bytes, and remembers what."""

    def __init__(self):
        super().__init__(MemoryTokenizer())
        self.encoded = []

    def encode(self, documents):
        self.encoded += documents
        return super().encode(documents)


def test_unwanted_documents_are_not_tokenized():
    """Reading the few that are held out costs no tokenizing of all the others."""
    texts = [f"text {number}" for number in range(200)]
    holdout, tokenizer = Holdout(0.1, 0), RememberingTokenizer()
    source = MemoryDataSource({"unit": texts})
    reader = TextReader(source, TextDocumentEncoder(tokenizer), RejectedRecords("stop"))
    list(reader.tokens(source.units()[0], wanted=holdout.holds))
    assert tokenizer.encoded == [text for text in texts if holdout.holds_text(text)]
    assert 0 < len(tokenizer.encoded) < 60


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_document_that_is_no_unicode_is_a_bad_record(on_error):
    """Half of a surrogate pair is a record that cannot be used, by the run's policy, and takes no neighbour with it."""
    groups, rejected, error = read(["good", "bad \ud800", "better"], on_error=on_error)
    kept = ["good", None, "better"] if on_error == "skip" else ["good"]
    assert documents_of(groups) == expected_of(kept)
    reasons = [record["reason"] for record in rejected] if on_error == "skip" else [str(error)]
    assert len(reasons) == 1
    assert reasons[0].startswith("unit: ")
    assert "position 1" in reasons[0]


@settings(deadline=None)
@given(st.lists(st.text("ab", max_size=5), max_size=6))
def test_hashes_are_of_the_text_as_it_was_stored(texts):
    """A transform changes what is trained on, not on which side of a hold-out a document falls."""
    groups, _, _ = read(texts, transforms=[MemoryTransform(lambda text: text.upper() or None, "")])
    assert [number for _, number, _ in documents_of(groups)] == [hash_of(text) for text in texts if text]


def test_the_documents_of_a_record_have_its_hash_and_its_place():
    """A record that becomes several documents gives each of them its hash, its position and its end."""
    source = MemoryDataSource({"unit": ["ab c", "d", "e f g"]})
    (group,) = TextReader(source, WordsEncoder(), RejectedRecords("stop")).tokens(source.units()[0])
    assert documents_of([group]) == [
        ([*word.encode()], hash_of(text), place + 1)
        for place, text in enumerate(("ab c", "d", "e f g"))
        for word in text.split()
    ]
    assert group.starts == [0, 0, 1, 2, 2, 2]
    assert group.loss_mask.tolist() == [False, True, True, True, True, True, True]


class LoneTokenizer(ForwardingTokenizer):
    """Encodes as bytes, one document at a time."""

    def __init__(self):
        super().__init__(MemoryTokenizer())

    def encode(self, documents):
        if len(documents) > 1:
            msg = "these are too many"
            raise DataError(msg)
        return super().encode(documents)


@pytest.mark.parametrize("tokenizer", [MemoryTokenizer(), LoneTokenizer()])
@pytest.mark.parametrize("num_texts", [40, 45])
def test_no_texts_are_held_while_a_group_waits(tokenizer, num_texts):
    """Of a group that is yielded only the tokens are in memory, as many units may be read at the same time."""
    texts = [f"text {number:03}" for number in range(num_texts)]
    source = MemoryDataSource({"unit": texts})
    reader = TextReader(source, TextDocumentEncoder(tokenizer), RejectedRecords("stop"), group_characters=160)
    groups = []
    for group in reader.tokens(source.units()[0]):
        groups.append(group)
        gc.collect()
        assert sum(type(each) is Record and each.text in texts for each in gc.get_objects()) <= 2
    assert [len(group.ends) for group in groups] == [20, 20, 5][: len(groups)]
    assert documents_of(groups) == expected_of(texts)
