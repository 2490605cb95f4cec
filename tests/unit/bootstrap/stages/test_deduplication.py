"""The search for duplicates, built from the settings."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.prepare.data_streams import check_dedup, leave_out_duplicates
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from tests.support.encoders import BYTES
from tests.support.planted_duplicates import corpus, reader, units_of


def data(*overrides):
    return load_settings([], overrides, {}).settings.data


def documents_left_out(readers, data, mode, folder, encryption):
    """Return the documents that each reader leaves out, None for a reader that leaves out nothing."""
    readers = leave_out_duplicates(readers, data, mode, folder, encryption, progress=lambda *_: None)
    return [reader.left_out for reader in readers]


def positions(folder, sources, *overrides, mode="cache"):
    """Return the positions that are left out of each source of one unit."""
    readers = [reader({"unit": texts}) for texts in sources]
    found = documents_left_out(readers, data(*overrides), mode, folder, None)
    return [
        None if each is None else [n for n in range(len(texts)) if each.mask(own.source.units()[0], [n])[0]]
        for each, own, texts in zip(found, readers, sources, strict=True)
    ]


def test_the_scope_is_a_source_or_all_of_them(tmp_path):
    """By default a document is left out if any source before it has its text."""
    sources = [["one", "two"], ["two", "three", "THREE"]]
    assert positions(tmp_path, sources, "data.dedup=exact") == [[], [0, 2]]
    assert positions(tmp_path, sources, "data.dedup.kind=exact", "data.dedup.scope=source") == [[], [2]]
    assert positions(tmp_path, sources, "data.dedup.kind=exact", "data.dedup.normalize=false") == [[], [0]]
    assert positions(tmp_path, sources) == [None, None]


def test_documents_that_are_nearly_the_same_are_left_out(tmp_path):
    """MinHash leaves out what exact comparison keeps, and more at a lower threshold."""
    texts = corpus(60, 120)
    exact, high, low = (
        positions(tmp_path, [texts], *overrides)[0]
        for overrides in (
            ["data.dedup=exact"],
            ["data.dedup=minhash"],
            ["data.dedup.kind=minhash", "data.dedup.threshold=0.5"],
        )
    )
    assert 0 < len(exact) < len(high) < len(low)
    assert set(exact) <= set(high) <= set(low)


def test_encryption_changes_no_result(tmp_path):
    """With an encrypted cache the same documents are left out, and a second search decrypts the result."""
    own, encryption = reader(units_of(corpus(60, 120))), ShardEncryption(MemoryKeyProvider(b"\x01" * 32))
    units = own.source.units()

    def masks(folder, encryption):
        options = data("data.dedup=minhash"), "cache", tmp_path / folder, encryption
        (found,) = documents_left_out([own], *options)
        return [found.mask(unit, range(50)).tolist() for unit in units]

    expected = masks("plain", None)
    assert any(map(any, expected))
    assert masks("encrypted", encryption) == expected
    num_read = own.source.bytes_read
    assert masks("encrypted", encryption) == expected
    assert own.source.bytes_read == num_read


def test_readers_leave_out_duplicates(tmp_path):
    """Readers tokenize only the documents that stay, under another fingerprint; without dedup they are unchanged."""
    options = "cache", tmp_path, None

    def tokenized(*overrides):
        (own,) = leave_out_duplicates(
            [reader({"unit": ["one", "two", "one"]})], data(*overrides), *options, progress=lambda *_: None
        )
        (unit,) = own.source.units()
        return [start for group in own.tokens(unit) for start in group.starts], own.fingerprints

    assert tokenized("data.dedup=exact")[0] == [0, 1]
    assert tokenized()[0] == [0, 1, 2]
    assert tokenized()[1] == tokenized("data.dedup=exact")[1][:-1]


def test_units_of_one_source_are_compared(tmp_path):
    """A document is left out if an earlier unit has its text."""
    own = reader(units_of(["one", "two", "one", "three"], 2))
    (found,) = documents_left_out([own], data("data.dedup=exact"), "cache", tmp_path, None)
    assert found.mask(own.source.units()[1], [0, 1]).tolist() == [True, False]


UNIQUE = "data.validation.fields={id: {unique: true}}"


class Records(MemoryDataSource):
    """Gives each document the fields that belong to its text."""

    def read(self, unit, start=None):
        for item in super().read(unit, start):
            key, _, text = item.text.partition(" ")
            yield replace(item, text=text, fields={"id": key} if key != "-" else {})


def test_records_with_a_value_that_an_earlier_record_has_are_left_out(tmp_path):
    """The first record with a value stays; a record that is left out for its value takes no copy of it along."""
    source = Records({"unit": ["1 one", "2 two", "1 three", "- one", "3 three", "- four", "4 one"]})
    own = TextReader(source, BYTES, RejectedRecords("stop"))
    (found,) = documents_left_out([own], data("data.dedup=exact", UNIQUE), "cache", tmp_path, None)
    (unit,) = own.source.units()
    assert found.mask(unit, range(7)).tolist() == [False, False, True, True, False, False, True]
    assert found.verdict(unit, 2).reason == "validation.id.unique"
    assert "position 0 of unit" in found.verdict(unit, 2).detail
    assert found.verdict(unit, 3).reason == "dedup.exact"


@pytest.mark.parametrize(
    ("overrides", "mode", "message"),
    [
        ([UNIQUE], "stream", r"set data\.mode=cache"),
        (["data.dedup=exact"], "stream", r"set data\.mode=cache"),
        (["data.dedup=exact", "data.kind=tokens", "data.path=x.npy"], "cache", "has no text"),
    ],
)
def test_data_that_cannot_be_compared_are_refused(overrides, mode, message):
    """Streams and tokens are refused in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        check_dedup(data(*overrides), mode)


def test_streams_and_tokens_need_no_check_without_dedup():
    """Without data.dedup every mode is right."""
    assert check_dedup(data(), "stream") is None


def test_the_missing_package_is_named(tmp_path, monkeypatch):
    """Without rensa the error says what to install."""
    monkeypatch.setitem(sys.modules, "rensa", None)
    monkeypatch.delitem(sys.modules, "holdfast.adapters.shared.minhash", raising=False)
    with pytest.raises(ConfigurationError, match=r"holdfast-lm\[dedup\]"):
        positions(tmp_path, [["one"]], "data.dedup=minhash")
