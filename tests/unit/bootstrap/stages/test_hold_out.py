"""A run keeps the documents held out that it chose when it began, whatever becomes of its data."""

import base64
import json
import random

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.bootstrap.stages.identify.hold_out import HOLDOUT, hold_out, record_holdout
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import StateError

WORDS = [f"word{number}" for number in range(3000)]


def texts(*numbers):
    return [" ".join(random.Random(number).choices(WORDS, k=60)) for number in numbers]


BEGUN = texts(*range(100))
CHANGED = [*BEGUN[20:], *(f"{one} {other}" for one, other in zip(BEGUN[:50], BEGUN[50:], strict=True))]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that chooses from documents as a start of the run of ``record`` does, and records it."""
    monkeypatch.setenv("KEY", base64.b64encode(bytes(32)).decode())

    def choose(documents, record, *more):
        given = ["data.path=texts", "data.holdout_by=similar_documents", f"run.cache_dir={tmp_path}", *more]
        settings = load_settings([], given, {}).settings
        source, said = MemoryDataSource({"unit": documents}), []
        chosen = hold_out(source, settings, said.append, lambda *_: None, record.get(HOLDOUT, {}))
        record_holdout(record, chosen, settings)
        record |= json.loads(json.dumps(record))
        return chosen

    return choose


@pytest.mark.parametrize("more", [(), ("data.folds=4", "data.fold=1")])
def test_other_data_change_nothing_in_what_is_held_out(start, more):
    """Documents that were trained on are never evaluated; a run that begins with the other data chooses others."""
    record = {}
    chosen = start(BEGUN, record, *more)
    assert start(CHANGED, record, *more) == chosen
    anew = start(CHANGED, {}, *more)
    trained = [text for text in BEGUN if not chosen.holds_text(text)]
    assert any(anew.holds_text(text) for text in trained)


def test_documents_chosen_one_by_one_are_kept_too(start):
    """Where all resemble one another, the run goes on as it began."""
    family = [f"{texts(1)[0]} {text[:20]}" for text in texts(*range(9))]
    record = {}
    chosen = start(family, record, "data.holdout=0.5")
    assert (chosen.chosen, chosen.fraction) == (None, 0.5)
    assert start(CHANGED, record, "data.holdout=0.5") == chosen


def test_an_encrypted_run_records_no_hashes_and_refuses_another_choice(start):
    """The hash of a document is data; without it, other documents would be held out of other data."""
    record, key = {}, ("data.cache.encryption.key_from=env:KEY",)
    chosen = start(BEGUN, record, *key)
    assert record[HOLDOUT].keys() == {"key"}
    assert start(BEGUN, record, *key) == chosen
    with pytest.raises(StateError, match="put the data back"):
        start(CHANGED, record, *key)


@pytest.mark.parametrize("damage", [{"hashes": "x"}, {"hashes": None}, {"seed": 5}, {"begin": None}])
def test_a_damaged_record_is_refused(start, damage):
    """No other documents are held out without a word."""
    record = {}
    start(BEGUN, record)
    record[HOLDOUT] |= damage
    with pytest.raises(StateError, match="restore it from a copy"):
        start(BEGUN, record)


def test_documents_that_are_chosen_by_their_hash_alone_are_not_listed(start):
    """They are the same at each start."""
    record = {}
    start(BEGUN, record, "data.holdout_by=document")
    assert HOLDOUT not in record
