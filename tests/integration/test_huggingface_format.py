"""Datasets as the library of Hugging Face stores them, good and bad, without a network."""

from __future__ import annotations

import json
import sys

import datasets
import pytest

from holdfast.adapters.data_source.formats.records import Limits
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.domain.errors import ConfigurationError, DataError
from tests.support.reading import read_all

TEXTS = [f"text {number}" for number in range(20)]
RECORDS = [{"text": text, "id": number, "language": "de" if number % 2 else "en"} for number, text in enumerate(TEXTS)]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Keep the library's lock files out of the home folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["saved", "saved splits", "jsonl", "parquet"])
def folder(request, tmp_path):
    """Return a folder with the records, in four shards where it has shards."""
    path = tmp_path / "corpus"
    dataset = datasets.Dataset.from_list(RECORDS, split="train")
    if request.param == "saved":
        dataset.save_to_disk(path, num_shards=4)
    elif request.param == "saved splits":
        datasets.DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(path)
    else:
        path.mkdir()
        for index in range(4):
            part = dataset.select(range(index * 5, index * 5 + 5))
            (part.to_json if request.param == "jsonl" else part.to_parquet)(path / f"{index}.{request.param}")
    return str(path)


def test_a_dataset_gives_its_texts(folder):
    """Whatever holds the rows, their texts come in order, chosen by field and filter."""
    assert [found.text for found in read_all(HuggingfaceDataSource(folder))] == TEXTS
    german = HuggingfaceDataSource(folder, filter={"language": "de"}, limits=Limits(unit_bytes=100))
    assert [found.text for found in read_all(german)] == TEXTS[1::2]


def test_a_saved_split_is_divided_into_rows(tmp_path):
    """A split that the library saved is read in as many units as make its bytes."""
    datasets.Dataset.from_list(RECORDS).save_to_disk(tmp_path / "corpus")
    source = HuggingfaceDataSource(str(tmp_path / "corpus"), limits=Limits(unit_bytes=500))
    units = source.units()
    assert len(units) > 1
    assert [unit.stop for unit in units] == [*(unit.start for unit in units[1:]), None]
    assert [found.text for found in read_all(source)] == TEXTS


def test_shards_of_files_are_units(tmp_path):
    """Each data file of a folder is a unit that is read without the others."""
    for index in range(12):
        (tmp_path / f"train-{index:02}.jsonl").write_text(json.dumps({"text": f"file {index}"}) + "\n")
    source = HuggingfaceDataSource(str(tmp_path))
    texts = [[found.text for found in source.read(unit)] for unit in source.units()]
    assert texts == [[f"file {index}"] for index in range(12)]


def test_a_field_that_is_missing_is_named(folder):
    """A dataset without the field is rejected unit by unit, with the fields that there are."""
    bad = read_all(HuggingfaceDataSource(folder, text_field="body"))[0]
    assert "corpus/train" in bad.reason
    assert "no column 'body', only 'text', 'id', 'language'" in bad.reason
    assert bad.end is None


def test_a_split_that_is_missing_is_named(folder):
    """A split that is not there is an error that names it and the settings."""
    with pytest.raises(DataError, match=r"split 'none' of the dataset .*data\.split"):
        HuggingfaceDataSource(folder, split="none").units()


def test_a_shard_that_is_damaged_is_named(tmp_path):
    """A file that cannot be read ends the reading of its unit, and of no other."""
    datasets.Dataset.from_list(RECORDS).to_parquet(tmp_path / "0.parquet")
    content = (tmp_path / "0.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(content)
    source = HuggingfaceDataSource(str(tmp_path))
    units = source.units()
    (tmp_path / "1.parquet").write_bytes(b"PAR1")
    assert len(list(source.read(units[0]))) == len(RECORDS)
    (bad,) = source.read(units[1])
    assert "train@00001, from row 0 on, cannot be read" in bad.reason
    assert bad.end is None


def test_the_package_is_named(monkeypatch):
    """Where the library is missing the error says which extra brings it."""
    monkeypatch.delitem(sys.modules, "holdfast.adapters.data_source.hf_rows", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigurationError, match=r'pip install "holdfast-lm\[datasets\]"'):
        HuggingfaceDataSource("someone/corpus").units()
