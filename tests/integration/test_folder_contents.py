"""What a folder holds is read, or it is named and counted."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats import jsonl as json_array
from holdfast.adapters.data_source.formats.records import Reading
from holdfast.adapters.data_source.mixture import MixtureDataSource
from holdfast.bootstrap.adapter_choice.data_sources import open_files, open_source, report_remarks
from holdfast.bootstrap.stages.build.evaluation_sets import check_files
from holdfast.bootstrap.stages.identify.data import RunData
from holdfast.bootstrap.stages.identify.data_form import choose_mode
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.data_files import FIRST_RULES, LATEST_RULES
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.data_source import Rejected
from tests.support.reading import read_all, texts_of


def lines(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def array(*texts):
    return json.dumps([{"text": text} for text in texts], indent=1).encode()


def folder_of(path, **files):
    for name, content in files.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return FilesDataSource([str(path)])


def files(path, contents):
    return folder_of(path, **contents)


def remarks(source):
    return [remark.sentence for remark in source.remarks()]


def test_text_beside_records_is_not_read_unless_it_is_listed(tmp_path):
    """The card and the license of a dataset are no documents of it, and they are named."""
    card = {"README.md": b"card", "LICENSE.txt": b"license", "data__all.json": array("one", "two")}
    source = files(tmp_path / "hub", card)
    assert texts_of(source) == ["one", "two"]
    (said,) = remarks(source)
    assert said.startswith(f"2 files in {tmp_path}/hub are plain text beside records and not read: ")
    assert texts_of(FilesDataSource([str(tmp_path / "hub"), f"{tmp_path}/hub/*.md"])) == ["card", "one", "two"]
    assert len(texts_of(FilesDataSource([f"{tmp_path}/hub/**"]))) == 4


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (("train.jsonl", "test.jsonl"), "test"),
        (("data__train-00000-of-00001.jsonl", "data__valid-00000-of-00001.jsonl"), "validation"),
        (("train__a.jsonl", "dev__a.jsonl"), "validation"),
        (("train.txt", "test.txt"), "test"),
        (("train__a.txt", "eval__b.txt"), "test"),
    ],
)
def test_other_splits_beside_the_one_to_train_are_offered_for_evaluation(tmp_path, names, left):
    """Files that names of files or folders put into another split are left out beside those of the split train."""
    content = (lines("one"), lines("two")) if names[0].endswith("l") else (b"one", b"two")
    source = files(tmp_path, dict(zip(names, content, strict=True)))
    assert texts_of(source) == ["one"]
    other = names[1].replace("__", "/")
    setting = f"evaluation.sets.{left}.path={tmp_path}/{other}"
    assert remarks(source) == [
        f"1 file in {tmp_path} is of the split {left} and not trained on: {other}; evaluate on it with {setting}"
    ]


def test_many_files_of_a_split_are_offered_as_a_glob(tmp_path):
    """The path that is told for many files holds all of them and nothing else."""
    names = {f"{split}-{number:05}.jsonl": lines(split) for split in ("train", "test") for number in range(9)}
    source = files(tmp_path, names)
    path = remarks(source)[0].rpartition("=")[2]
    assert texts_of(FilesDataSource([path])) == ["test"] * 9


@pytest.mark.parametrize(
    "names", [("test.jsonl", "more.jsonl"), ("train.py", "test.py"), ("train it.txt", "test it.txt")]
)
def test_names_that_are_no_splits_leave_nothing_out(tmp_path, names):
    """Without a split train all is read, and programs and titles are no splits."""
    source = files(tmp_path, {name: lines("one") for name in names})
    assert len(read_all(source)) == 2
    doubts = [remark for remark in source.remarks() if remark.unused]
    assert not doubts
    assert bool(remarks(source)) is names[0].endswith(".jsonl")


def test_what_is_in_no_format_is_counted(tmp_path):
    """Archives, documents with a layout, objects and empty files are named, each with its reason."""
    others = dict.fromkeys(("d.zip", "e.docx", "f.png", "g.bin"), b"?")
    others |= {"config.json": b'{\n "a": 1\n}\n', "h.jsonl": b"", "i.parquet": b"", "j.csv": b"", "k.jsonl.gz": b""}
    source = files(tmp_path, {"a.jsonl": lines("one"), **others})
    assert texts_of(source) == ["one"]
    where = f"in {tmp_path}"
    assert remarks(source) == [
        f"4 files {where} are not read, as the suffix is not that of a format: d.zip, e.docx, f.png, ...",
        f"1 file {where} is not read, as it is neither a JSON array of records nor an object on each line: config.json",
        f"4 files {where} are empty: h.jsonl, i.parquet, j.csv, ...",
    ]
    assert sum(remark.unused for remark in source.remarks()) == 9


CARD = (
    b"---\nconfigs:\n- data_files: a/*\n  config_name: one\n- config_name: two\n  data_files:\n  - path: [b/*]\n---\n"
)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train.jsonl", "more.jsonl"], "1 file of no split is read beside those of the split train: more.jsonl"),
        (["a-00000-of-00001.jsonl", "b-00000-of-00001.jsonl"], "several sets of shards are read together: a-*-of-"),
        (["a.jsonl", "b.jsonl.gz"], "files of several formats are read: 1 jsonl, 1 jsonl.gz"),
        (
            ["a/a.jsonl", "b/b.jsonl", "README.md"],
            "README.md names other files to train on, by configuration (one, two)",
        ),
        (["a/a.jsonl", "a/b.jsonl", "README.md"], None),
    ],
)
def test_what_may_be_more_than_is_meant_is_said(tmp_path, names, said):
    """A folder is read as a whole, and what tells that a part of it may be meant is named."""
    contents = {name: CARD if name == "README.md" else lines(name) for name in names}
    contents |= {name: gzip.compress(lines(name)) for name in names if name.endswith(".gz")}
    source = files(tmp_path, contents)
    assert texts_of(source) == sorted(name for name in names if name != "README.md")
    doubts = [remark.sentence for remark in source.remarks() if not remark.unused]
    assert [doubt.startswith(f"{tmp_path}: {said}") for doubt in doubts] == [True] * (said is not None)


@pytest.mark.parametrize(
    "head", [b"[" * 9000, b"- a", b"a: &a [*a]", b"configs: {a: 1}", b"configs:\n- data_files: [[[1]]]"]
)
def test_a_strange_card_is_no_error(tmp_path, head):
    """A card may hold anything."""
    source = files(tmp_path, {"README.md": b"---\n" + head + b"\n---\n", "a.jsonl": lines("one")})
    assert texts_of(source) == ["one"]


def test_a_saved_dataset_has_the_files_that_it_lists(tmp_path):
    """Results of map and filter, and files of an earlier state, are not read, and counted."""
    dataset = datasets.Dataset.from_dict({"text": ["one", "two"]})
    dataset.save_to_disk(str(tmp_path), num_shards=2)
    for name in ("cache-0123456789abcdef.arrow", "data-00002-of-00003.arrow"):
        (tmp_path / name).write_bytes((tmp_path / "data-00000-of-00002.arrow").read_bytes())
    source = FilesDataSource([str(tmp_path)])
    assert texts_of(source) == ["one", "two"]
    assert remarks(source)[0].startswith(f"2 files in {tmp_path} are no part of the saved dataset")
    (tmp_path / "state.json").write_bytes(b"{\n")
    assert texts_of(FilesDataSource([str(tmp_path)])) == ["one", "two", "one"]


def listing(names):
    return json.dumps({"_data_files": [{"filename": name} for name in names]}, indent=2).encode()


def arrow_file(path, *texts):
    table = pa.table({"text": texts})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def test_a_long_list_of_a_saved_dataset_is_read_to_its_end(tmp_path):
    """The list of thousands of shards is larger than the first 64 KiB of a file."""
    names = [f"data-{number:05}-of-02000.arrow" for number in range(2000)]
    (tmp_path / "state.json").write_bytes(listing(names))
    arrow_file(tmp_path / names[-1], "one")
    arrow_file(tmp_path / "old.arrow", "two")
    source = FilesDataSource([str(tmp_path)])
    assert texts_of(source) == ["one"]
    assert remarks(source)[0].startswith(f"1 file in {tmp_path} is no part of the saved dataset")


def test_a_list_of_files_that_are_not_there_leaves_out_none(tmp_path):
    """Shards that were renamed are read, which is said, and results of map are still left out."""
    (tmp_path / "state.json").write_bytes(listing(["data-00000-of-00001.arrow"]))
    for name in ("part1.arrow", "part2.arrow", "cache-0123456789abcdef.arrow"):
        arrow_file(tmp_path / name, name)
    source = FilesDataSource([str(tmp_path)])
    assert texts_of(source) == ["part1.arrow", "part2.arrow"]
    said = "state.json lists other Arrow files than are there, so all of these are read: part1.arrow, part2.arrow"
    assert f"{tmp_path}: {said}" in remarks(source)


@pytest.mark.parametrize(
    ("name", "remedy"), [("d.zip", "unpack it"), ("e.docx", "convert it to text"), ("f.dat", "set data.format")]
)
def test_a_named_file_in_no_format_says_what_to_do(tmp_path, name, remedy):
    """A file that is named and cannot be read is refused with the remedy for its kind."""
    (tmp_path / name).write_bytes(b"?")
    with pytest.raises(DataError, match=remedy):
        FilesDataSource([str(tmp_path / name)]).units()


@pytest.mark.parametrize(("suffix", "pack"), [(".bz2", bz2.compress), (".xz", lzma.compress), (".gz", gzip.compress)])
@pytest.mark.parametrize(("name", "content"), [("a.jsonl", lines), ("a.json", lines), ("b.json", array)])
def test_packed_records_are_read(tmp_path, suffix, pack, name, content):
    """Lines and arrays of JSON are read from each archive, members behind each other too, and resume exactly."""
    texts = [f"text {number}" for number in range(50)]
    packed = pack(content(*texts))
    if content is lines:
        packed = pack(content(*texts[:20])) + pack(content(*texts[20:]))
    source = files(tmp_path, {f"{name}{suffix}": packed})
    assert texts_of(source) == texts
    (unit,) = source.units()
    documents = list(source.read(unit))
    assert [each.text for each in source.read(unit, documents[30].end)] == texts[31:]
    assert [each.text for each in source.read(unit, documents[30].start)] == texts[30:]
    (tmp_path / f"{name}{suffix}").write_bytes(packed[:-9])
    *_, last = read_all(FilesDataSource([str(tmp_path)]))
    assert isinstance(last, Rejected)
    assert "truncated or damaged" in last.reason


@pytest.mark.parametrize("piece", [3, 5, 64, 1 << 16])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_is_read_piece_by_piece(tmp_path, monkeypatch, piece, indent):
    """Brackets, quotes and escapes in texts end no record, wherever a piece of the file ends."""
    monkeypatch.setattr(json_array, "_PIECE_BYTES", piece)
    records = [{"more": [{"a": [1.5, None]}], "text": f'{number} "q" \\ {{[}}] é\n'} for number in range(20)]
    (tmp_path / "a.json").write_text("\ufeff " + json.dumps(records, indent=indent, ensure_ascii=False) + "\n ")
    source = FilesDataSource([str(tmp_path)])
    documents = read_all(source)
    assert [each.text for each in documents] == [record["text"] for record in records]
    (unit,) = source.units()
    for number, each in enumerate(documents):
        assert list(source.read(unit, each.start)) == documents[number:]
        assert list(source.read(unit, each.end)) == documents[number + 1 :]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'[{"text": "a"}', "ends in the middle of its array"),
        (b'[{"text": "a"}, {"te', "ends in the middle of its array"),
        (b'[{"text": "a"}] {', "more behind the end of its array"),
        (b'[{"text": "a"}, 7]', "is a number, not a JSON object"),
        (b'[{"text": "a"}, {"text" 1}]', "is not JSON"),
        (b'{\n "text": "a"\n}', "neither a JSON array of records nor an object on each line"),
    ],
)
def test_a_damaged_array_is_named(tmp_path, content, problem):
    """The records before the damage are read, and a file that is one object over several lines is refused."""
    (tmp_path / "a.json").write_bytes(content)
    *before, last = read_all(FilesDataSource([str(tmp_path / "a.json")]))
    assert [each.text for each in before] == ["a"] * (not content.startswith(b"{"))
    assert isinstance(last, Rejected)
    assert problem in last.reason


def test_a_run_that_began_before_reads_what_it_read(tmp_path):
    """By the first rules a folder gives text beside records and all splits, and no format that was added later."""
    contents = {"README.md": b"card", "train.jsonl": lines("one"), "test.jsonl": lines("two"), "a.json": array("no")}
    source = files(tmp_path, contents).with_reading(Reading(FIRST_RULES))
    assert [Path(unit.name).name for unit in source.units()] == ["README.md", "test.jsonl", "train.jsonl"]


def data_of(path, *more):
    return load_settings([], [f"data.path={path}", *more], {}).settings.data


def test_strict_data_hold_nothing_that_is_not_used(tmp_path):
    """What is not read is reported once, of each source of a mixture; with data.strict it ends the run."""
    source = MixtureDataSource({"web": files(tmp_path, {"a.jsonl": lines("one"), "b.zip": b"?"})})
    said: list[str] = []
    report_remarks(source, data_of(tmp_path), said.append)
    assert [line.partition(":")[0] for line in said] == ["web"]
    with pytest.raises(DataError, match=r"data\.strict is true, but web: 1 file in .*b\.zip: name only what is used"):
        report_remarks(source, data_of(tmp_path, "data.strict=true"), said.append)


def test_an_empty_file_has_a_known_size(tmp_path):
    """An empty file beside others does not make the data a stream."""
    source = files(tmp_path, {"a.txt": b"one", "b.txt": b"", "c.md": b""})
    choices = {}
    assert choose_mode(
        source, data_of(tmp_path), tmp_path, lambda name, mode, why: choices.update({name: why}) or mode
    ) == ("cache")


def test_fields_that_are_not_used_are_named(tmp_path):
    """The other fields of plain records are said once, with the number of first records that have them."""
    records = [{"text": "a", "id": number, **({"url": "b"} if number < 3 else {})} for number in range(5)]
    lines_of = "".join(json.dumps(record) + "\n" for record in records).encode()
    for name, content in (("a.jsonl", lines_of), ("b.json", json.dumps(records).encode())):
        source = FilesDataSource([str(next(iter(tmp_path.glob(name)), tmp_path / name))])
        (tmp_path / name).write_bytes(content)
        assert remarks(source) == [
            f"fields of the records in {tmp_path}/{name} that are not used (of the first 5 records): 'id', 'url' (3)"
        ]
    pq.write_table(pa.table({"text": ["a"], "id": [1]}), tmp_path / "c.parquet")
    source = FilesDataSource([str(tmp_path / "c.parquet")])
    assert remarks(source) == [f"fields of the records in {tmp_path}/c.parquet that are not used: 'id'"]
    assert not [remark for remark in source.remarks() if remark.unused]


@pytest.mark.parametrize(
    ("token", "before"), [("<|endoftext|>", ""), ("<|endoftext|>", "\n"), ("<|end_of_text|>", "\n"), ("</s>", "\n")]
)
def test_a_token_between_texts_is_said(tmp_path, token, before):
    """A usual end token in plain text is named once, with the setting that splits documents there, unless it is set."""
    content = f"{before}{token}\n".join(["one", "two"]).encode()
    source = files(tmp_path, {"a.txt": content, "b.txt": content})
    assert len(texts_of(source)) == 2
    (said,) = remarks(source)
    assert said.startswith(f"{tmp_path}/a.txt holds {token!r}, which is read as ordinary text and ends no document")
    assert f"set data.document_separator={token!r}" in said
    split = open_files(data_of(tmp_path, f"data.document_separator={token}"))
    assert [text.strip() for text in texts_of(split)] == ["one", "two"] * 2
    assert not remarks(split)
    assert split.files().reading != source.files().reading


def test_a_separator_that_has_no_use_is_said(tmp_path):
    """A separator that the beginning of the texts lacks, or beside which there is no text at all, is named."""
    records = open_files(data_of(folder_at(tmp_path / "a", "a.jsonl", lines("one")), "data.document_separator=x"))
    assert remarks(records) == ["data.document_separator is not used, as no file is plain text"]
    texts = open_files(data_of(folder_at(tmp_path / "b", "b.txt", b"one</s>two"), "data.document_separator=x"))
    assert remarks(texts) == [f"the first 10 bytes of {tmp_path}/b/b.txt hold no 'x'"]
    assert not remarks(files(tmp_path / "c", {"c.html": b"<s>no</s> yes"}))


def folder_at(path, name, content):
    files(path, {name: content})
    return path


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_training_file_by_another_path_is_no_evaluation_set(tmp_path, link):
    """A link to a file of the data is the same file, whatever folder it is in."""
    source = files(tmp_path / "data", {"a.jsonl": lines("one"), "b.jsonl": lines("two")})
    (tmp_path / "set").mkdir()
    link(tmp_path / "set" / "c.jsonl", tmp_path / "data" / "b.jsonl")
    settings = load_settings(
        [], [f"data.path={tmp_path}/data", f"evaluation.sets.held.path={tmp_path}/set"], {}
    ).settings
    with pytest.raises(ConfigurationError, match=r"evaluation\.sets\.held holds .*c\.jsonl, which is also a file"):
        check_files(settings, (), LATEST_RULES, RunData(source), lambda _: None)


def with_split(data, held):
    settings = ["data.kind=huggingface", *(f"data.{each}" for each in data), f"evaluation.sets.valid={held}"]
    settings = load_settings([], settings, {}).settings
    source = open_source(settings.data)
    check_files(settings, (), LATEST_RULES, RunData(source), lambda _: None)
    return open_source(settings.evaluation.sets["valid"])


@pytest.fixture(params=["saved", "streamed"])
def dataset(request, tmp_path):
    """Return a folder with the splits train and test, which the library saved or streams."""
    if request.param == "saved":
        splits = {name: datasets.Dataset.from_dict({"text": [name] * 10}) for name in ("train", "test")}
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "all"))
    else:
        files(tmp_path / "all", {"train.jsonl": lines("train"), "test.jsonl": lines("test")})
    return tmp_path / "all"


def test_a_set_is_a_split_that_is_not_trained_on(dataset):
    """A set may be another split of the dataset of the run; its own is refused, however the path is written."""
    data = [f"path={dataset}"]
    assert {*texts_of(with_split(data, f"{{kind: huggingface, path: {dataset}, split: test}}"))} == {"test"}
    for path in (dataset, f"{dataset.parent}/../{dataset.parent.name}/{dataset.name}"):
        with pytest.raises(
            ConfigurationError, match=r"evaluation\.sets\.valid holds .*/train.*, rows that are also rows of data"
        ):
            with_split(data, f"{{kind: huggingface, path: {path}}}")


@pytest.mark.parametrize("dataset", ["saved"], indirect=True)
def test_parts_of_a_split_are_told_apart_by_their_rows(dataset):
    """A set may be the part of a saved split that the run does not read, and no row more; its file is refused."""
    data = [f"path={dataset}", "split='train[:90%]'"]
    assert texts_of(with_split(data, f"{{kind: huggingface, path: {dataset}, split: 'train[90%:]'}}")) == ["train"]
    with pytest.raises(ConfigurationError, match="rows that are also rows of data"):
        with_split(data, f"{{kind: huggingface, path: {dataset}, split: 'train[80%:]'}}")
    with pytest.raises(ConfigurationError, match=r"\.arrow, which is also a file of data"):
        with_split(data, f"{{path: {dataset}/train/*.arrow}}")
