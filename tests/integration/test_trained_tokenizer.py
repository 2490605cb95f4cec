"""Training a tokenizer on a run's documents, and keeping it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from functools import partial
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.data_source.python_library import PythonLibraryDataSource
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.adapters.tokenizer.train import sample_documents, train_tokenizer
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.phase import Amount
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import Document, Rejected, Unit

# each pair is as frequent as the next: what decides between them must be the same everywhere
TIES = {f"unit {number}": [f"{chr(97 + number)}{chr(98 + number)} " * 50] for number in range(40)}
TRAIN = """
import sys
from pathlib import Path
from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.tokenizer.train import train_tokenizer
train_tokenizer(
    MemoryDataSource({units!r}), vocabulary_size=300, max_bytes=1 << 20, usable=lambda document: document.text,
    usable_key="none", cache_dir=Path(sys.argv[1]),
)
"""


@pytest.fixture
def train(tmp_path):
    return partial(
        train_tokenizer,
        vocabulary_size=300,
        max_bytes=1 << 20,
        usable=lambda document: document.text,
        usable_key="none",
        cache_dir=tmp_path,
    )


def test_training_shows_its_progress(train):
    """The bytes that are read and counted rise to all there are, and then the merges have a phase of their own."""
    shown = []
    train(MemoryDataSource(TIES), show=lambda *phase: shown.append(phase))
    phases = list(dict.fromkeys(phase for phase, *_ in shown))
    assert phases == [
        "reading text for the tokenizer",
        "training the tokenizer, counting words",
        "training the tokenizer, merging",
    ]
    num_bytes = sum(len(text.encode()) for texts in TIES.values() for text in texts)
    for phase, total in zip(phases, (1 << 20, num_bytes), strict=False):
        amounts = [amount for name, *rest in shown for amount in rest if name == phase]
        assert amounts[-1] == Amount(num_bytes, total)
        assert [amount.done for amount in amounts] == sorted(amount.done for amount in amounts)


def kept(folder):
    return {path.name: path.read_bytes() for path in (folder / "tokenizers").iterdir()}


def test_training_in_another_process_keeps_the_same_file(train, tmp_path):
    """The same documents and choices give the same file, whatever the process's hash seed and number of threads."""
    here, there = tmp_path / "here", tmp_path / "there"
    train(MemoryDataSource(TIES), cache_dir=here)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    code = TRAIN.format(units=TIES)
    subprocess.run([sys.executable, "-c", code, str(there)], env=environment, check=True, capture_output=True)
    assert kept(here) == kept(there) != {}


def test_a_kept_tokenizer_is_used_again(train, tmp_path):
    """The second run does not train, and has an equal tokenizer."""
    said = []
    first = train(MemoryDataSource(TIES), report=said.append)
    assert len(said) == 1
    assert re.search(r"training a 300-entry tokenizer on [\d.]+ KiB of 40 documents", said[0])
    second = train(MemoryDataSource(TIES), report=said.append)
    assert len(said) == 1
    assert second.fingerprint() == first.fingerprint()


def test_every_choice_has_a_tokenizer_of_its_own(train, tmp_path):
    """Other documents, sizes or hold-outs never find each other's file."""
    train(MemoryDataSource(TIES))
    train(MemoryDataSource({**TIES, "more": ["text"]}))
    train(MemoryDataSource(TIES), vocabulary_size=280)
    train(MemoryDataSource(TIES), max_bytes=1000)
    train(MemoryDataSource(TIES), usable_key="other")
    assert len(kept(tmp_path)) == 5


def cut(content: bytes) -> bytes:
    return content[:1000]


def flip(content: bytes) -> bytes:
    at = content.index(b"ab")
    return content[:at] + b"zz" + content[at + 2 :]


@pytest.mark.parametrize(
    "damage", [cut, flip, *(lambda _, text=text: text for text in (b"", b"[]", b"\xff", b"[" * 100_000))]
)
def test_a_damaged_file_is_replaced(train, tmp_path, damage):
    """A kept tokenizer that was cut or changed is trained again, with a word about it, and kept as it was."""
    train(MemoryDataSource(TIES))
    before = kept(tmp_path)
    (file,) = (tmp_path / "tokenizers").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert kept(tmp_path) != before
    said = []
    train(MemoryDataSource(TIES), report=said.append)
    assert "damaged" in said[0]
    assert kept(tmp_path) == before


def test_a_pipe_in_place_of_a_kept_tokenizer_is_replaced(train, tmp_path):
    """A pipe where the tokenizer is kept is not waited for."""
    train(MemoryDataSource(TIES))
    before = kept(tmp_path)
    (file,) = (tmp_path / "tokenizers").iterdir()
    file.unlink()
    os.mkfifo(file)
    train(MemoryDataSource(TIES))
    assert kept(tmp_path) == before


def test_a_tokenizer_that_cannot_be_kept_is_used_all_the_same(train, tmp_path):
    """A folder that cannot be written costs training again, not the run, and that is said."""
    (tmp_path / "file").write_text("no folder")
    said = []
    tokenizer = train(MemoryDataSource(TIES), cache_dir=tmp_path / "file", report=said.append)
    assert tokenizer.vocabulary_size <= 300
    assert "cannot be stored" in said[-1]


def test_held_out_documents_are_never_trained_on(train):
    """What is kept for evaluation leaves no trace in the vocabulary."""
    units = {"a": ["common words only " * 50, "zqxzqxzqx " * 500], "b": ["zqxzqxzqx " * 500]}
    tokenizer = train(
        MemoryDataSource(units), usable=lambda each: None if "zqx" in each.text else each.text, usable_key="zqx"
    )
    assert len(tokenizer.encode(["common words"]).ids) < 6
    assert len(tokenizer.encode(["zqxzqxzqx"]).ids) == 9


@pytest.mark.parametrize("size", [5000, 1 << 53])
def test_a_small_corpus_gives_a_small_vocabulary(train, size):
    """Documents that do not fill the vocabulary, however large, give a smaller one, and the user hears of it."""
    said = []
    tokenizer = train(MemoryDataSource({"a": ["ab"]}), vocabulary_size=size, report=said.append)
    assert tokenizer.vocabulary_size < 300
    assert f"{tokenizer.vocabulary_size:,}" in said[-1]


@pytest.mark.parametrize("units", [{"a": []}, {"a": [""]}, {"a": ["held out"]}])
def test_no_text_is_an_error(train, units):
    """A corpus without a text to train on is refused with one sentence."""
    with pytest.raises(DataError, match="a holds no text to use"):
        train(MemoryDataSource(units), usable=lambda each: None if each.text == "held out" else each.text)


def test_a_vocabulary_below_the_bytes_is_refused(train):
    """The 256 bytes and end-of-text are the smallest vocabulary."""
    assert train(MemoryDataSource(TIES), vocabulary_size=257).vocabulary_size == 257
    with pytest.raises(ConfigurationError, match="257"):
        train(MemoryDataSource(TIES), vocabulary_size=256)


def test_end_of_text_is_id_0(train):
    """A trained tokenizer ends documents with id 0, and its 256 bytes come next, in one fixed order."""
    tokenizer = train(MemoryDataSource(TIES))
    assert tokenizer.end_of_text == 0
    assert tokenizer.encode(["!Az"]).ids.tolist() == [1, 33, 90]


def test_a_checkpoint_holds_the_trained_tokenizer(train, tmp_path):
    """What is written into a checkpoint loads again as an equal tokenizer, as a folder and as a file."""
    tokenizer = train(MemoryDataSource(TIES))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    tokenizer.write(folder)
    for path in (folder, folder / "tokenizer.json"):
        loaded = HuggingfaceTokenizer.load(str(path))
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert loaded.end_of_text == tokenizer.end_of_text


def test_the_kept_file_is_json_that_names_its_hash(train, tmp_path):
    """A kept tokenizer can be looked into: its text lies in it as JSON."""
    train(MemoryDataSource(TIES))
    (content,) = kept(tmp_path).values()
    assert json.loads(json.loads(content)["tokenizer"])["model"]["type"] == "BPE"


def test_a_sample_is_spread_over_the_units():
    """A sample smaller than the corpus takes its share of each unit, not the first ones alone."""
    source = MemoryDataSource({f"{number:02}": [f"{number:02}" * 5] * 10 for number in range(50)})
    sample = list(sample_documents(source, 1000, attrgetter("text")))
    assert [text[:2] for text in sample] == [f"{number:02}" for number in range(50) for _ in range(2)]


class Torn(BasicDataSource):
    """Two documents with a record between them that is none."""

    def units(self):
        return [Unit("torn", 10, "etag")]

    def read(self, unit, start=None):
        yield Document("first", 0, 1)
        yield Rejected("torn: record 1 is no text", 1, 2)
        yield Document("last", 2, 3)

    def fingerprint(self):
        return "torn"


def test_a_rejected_record_is_no_text_to_train_on():
    """What the source rejects is passed over, and what follows it is used."""
    assert list(sample_documents(Torn(), 1000, attrgetter("text"))) == ["first", "last"]


units_of_text = st.dictionaries(
    st.text(max_size=3), st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4)
)


@settings(deadline=None)
@given(units=units_of_text.filter(bool), max_bytes=st.integers(1, 60))
def test_a_sample_is_bounded_and_complete_if_it_can_be(units, max_bytes):
    """No sample is larger than asked for, and a corpus that fits is taken whole, in order."""
    sample = list(sample_documents(MemoryDataSource(units), max_bytes, attrgetter("text")))
    everything = "".join(text for name in sorted(units) for text in units[name])
    size = sum(max(1, sum(len(text.encode()) for text in texts)) for texts in units.values())
    assert sum(len(text.encode()) for text in sample) <= max_bytes
    assert "".join(sample) == everything or size > max_bytes


def test_the_default_corpus_trains_in_seconds(train):
    """The default data gives a tokenizer that packs at least three bytes of Python into a token."""
    source = PythonLibraryDataSource()
    tokenizer = train(source, vocabulary_size=2048, max_bytes=1 << 20)
    text = next(source.read(next(unit for unit in source.units() if unit.name == "json/decoder.py"))).text
    assert tokenizer.vocabulary_size == 2048
    assert len(text.encode()) / len(tokenizer.encode([text]).ids) > 3


def test_a_document_is_trained_on_in_pieces_with_the_same_result(train):
    """A long document gives the tokenizer that its lines give, each of them a document."""
    line = "the theory's words, don't they (123 of them) end here? "
    whole = train(MemoryDataSource({"a": [line * 4000]}))
    lines = train(MemoryDataSource({"a": [line.strip() + " "] * 4000}))
    assert whole.fingerprint() == lines.fingerprint()


def test_a_word_of_a_megabyte_is_trained_on(train):
    """A document that is a single word of a megabyte gives a vocabulary, in seconds."""
    letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=(1 << 20) + 9)
    tokenizer = train(MemoryDataSource({"a": ["".join(letters)]}), max_bytes=1 << 22, vocabulary_size=400)
    assert tokenizer.vocabulary_size == 400
