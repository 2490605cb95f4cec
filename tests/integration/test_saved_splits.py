"""Splits of datasets that the library datasets saved, and parts of them."""

from __future__ import annotations

import pytest

from holdfast.adapters.data_source.formats.records import Limits
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.domain.errors import DataError

datasets = pytest.importorskip("datasets")

TEXTS = [f"text {number}" for number in range(50)]


@pytest.fixture
def saved(tmp_path):
    """Return the folder of a dataset of two splits, made of one split, of which one was renamed."""
    whole = datasets.Dataset.from_dict({"text": TEXTS}, split="train")
    halves = whole.train_test_split(test_size=0.2, seed=0)
    halves["kept"] = halves.pop("train")
    halves.save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def texts_of(path, split, unit_bytes=1 << 20):
    source = HuggingfaceDataSource(str(path), split=split, limits=Limits(unit_bytes=unit_bytes))
    return [document.text for unit in source.units() for document in source.read(unit)]


@pytest.mark.parametrize("split", ["test", "kept"])
@pytest.mark.parametrize("unit_bytes", [100, 1 << 20])
def test_each_split_of_a_saved_dataset_is_read(saved, split, unit_bytes):
    """A split is what its folder holds, whatever split it was made of."""
    assert texts_of(saved, split, unit_bytes) == datasets.load_from_disk(str(saved))[split]["text"]


@pytest.mark.parametrize("unit_bytes", [100, 1 << 20])
@pytest.mark.parametrize("part", ["[:50%]", "[50%:]", "[3:7]", "[-5:]", "[:33%](closest)", "[10:10]", "[1:-1]"])
def test_a_part_of_a_split_is_what_the_library_makes_of_it(tmp_path, saved, part, unit_bytes):
    """Parts are counted and rounded as by the library, in a folder of splits and in one of a single split."""
    whole = datasets.Dataset.from_dict({"text": TEXTS}, split="train")
    whole.save_to_disk(str(tmp_path / "one"))
    for path, split, texts in (
        (saved, "test", datasets.load_from_disk(str(saved))["test"]["text"]),
        (tmp_path / "one", "train", TEXTS),
    ):
        (rows,) = datasets.ReadInstruction.from_spec(split + part).to_absolute({split: len(texts)})
        assert texts_of(path, split + part, unit_bytes) == texts[rows.from_ : rows.to]


def test_parts_of_a_split_are_other_data(saved):
    """Two parts of the same files have neither tokens nor an identity in common."""
    first, second, whole = (
        HuggingfaceDataSource(str(saved), split=split) for split in ("test[:5]", "test[5:]", "test")
    )
    assert len({source.fingerprint() for source in (first, second, whole)}) == 3
    assert len({source.files().shape for source in (first, second, whole)}) == 3


def test_a_dataset_that_was_saved_as_a_part_is_read_whole(tmp_path):
    """The name of a split with its part, as a saved dataset has it, is all of that dataset."""
    datasets.Dataset.from_dict({"text": TEXTS[:9]}, split="train[:18%]").save_to_disk(str(tmp_path / "one"))
    assert texts_of(tmp_path / "one", "train[:18%]") == TEXTS[:9]


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ("train", "holds the splits 'test', 'kept'"),
        ("test+kept", "sums of splits are not read"),
        ("test[", "Unrecognized"),
    ],
)
def test_what_is_no_split_is_refused(saved, split, sentence):
    """A split that is not there, and a part that cannot be read, are told with what is there."""
    with pytest.raises(DataError, match=sentence):
        texts_of(saved, split)


def test_a_part_of_a_streamed_split_is_refused(tmp_path, monkeypatch):
    """Files that are streamed cannot be divided by their number of rows."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="parts and sums of splits"):
        texts_of(tmp_path / "lines", "train[:1]")
