"""Files of token ids that somebody else has made."""

from __future__ import annotations

import json
import os

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_source.files import FilesTokenSource
from holdfast.adapters.token_source.shards import ReadOptions
from holdfast.domain.errors import ConfigurationError, DataError, StateError, TokensLost
from holdfast.ports.testing.token_cache import tokens_of
from holdfast.ports.testing.token_source import all_documents, documents_in, lengths_of

END = 99
DOCUMENTS = [[1, 2, 3, END], [4, END], [END], [*range(30), END], [4, END], [0, 98, END]]


def flat(documents=DOCUMENTS):
    return [token for document in documents for token in document]


@pytest.fixture
def read(tmp_path):
    def read(*paths, **options):
        options = {
            "folder": tmp_path / "kept",
            "end_of_text": END,
            "vocabulary_size": 100,
            "shard_tokens": 35,
            **options,
        }
        return FilesTokenSource([str(path) for path in paths], **options)

    return read


def llm_c_header(num_tokens):
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, num_tokens
    return header.tobytes()


def hashes_of(source):
    return [int(each) for shard in source.shards() for each in source.open(shard).hashes]


def table_of(lists, kind=None, name="input_ids"):
    return pa.table({name: pa.array(lists, kind or pa.list_(pa.int32()))})


def write_every_kind(folder):
    """Write the documents once in each form that can be read, and return the paths."""
    folder.mkdir()
    for dtype in ("<u2", "<u4", "<i4", "<i8", ">i4", "u1"):
        np.save(folder / f"{dtype[1:]}{dtype[0] == '>'}.npy", np.array(flat(), dtype))
    np.array(flat(), "<u2").tofile(folder / "a.bin")
    np.array(flat(), "<u4").tofile(folder / "b.bin")
    (folder / "b.json").write_text(json.dumps({"dtype": "uint32"}))
    (folder / "llm.bin").write_bytes(llm_c_header(len(flat())) + np.array(flat(), "<u2").tobytes())
    lists = [document[:-1] for document in DOCUMENTS]
    pq.write_table(table_of(lists), folder / "a.parquet", row_group_size=2)
    pq.write_table(table_of(DOCUMENTS, pa.large_list(pa.uint16())), folder / "b.parquet")
    for name, writer in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink, writer(sink, table_of(lists).schema) as out:
            out.write_table(table_of(lists), 2)
    return sorted(path for path in folder.iterdir() if path.suffix != ".json")


def test_every_kind_of_file_holds_the_same_documents(tmp_path, read):
    """Whatever the format and the width of the ids, the documents are the same, and so are their hashes."""
    paths = write_every_kind(tmp_path / "data")
    assert len(paths) == 13
    hashes = hashes_of(read(tmp_path / "data/a.bin"))
    for path in paths:
        source = read(path)
        assert all_documents(source) == DOCUMENTS, path
        assert hashes_of(source) == hashes, path
    assert len(hashes_of(read(tmp_path / "data"))) == 13 * len(DOCUMENTS)


def test_a_file_is_cut_between_documents(tmp_path, read):
    """A shard has as many whole documents as fit into its number of tokens, and at least one."""
    np.save(tmp_path / "a.npy", np.array(flat(), np.uint16))
    source = read(tmp_path / "a.npy", shard_tokens=8)
    assert [documents_in(source.open(shard)) for shard in source.shards()] == [
        DOCUMENTS[:3],
        DOCUMENTS[3:4],
        DOCUMENTS[4:],
    ]


def test_what_follows_the_last_end_of_text_is_a_document(tmp_path, read):
    """A flat file that does not end with end-of-text loses no token."""
    np.save(tmp_path / "a.npy", np.array([1, END, 2, 3], np.uint16))
    source = read(tmp_path / "a.npy")
    assert all_documents(source) == [[1, END], [2, 3]]
    np.save(tmp_path / "b.npy", np.array([2, 3, END], np.uint16))
    assert hashes_of(source)[1] == hashes_of(read(tmp_path / "b.npy"))[0]


def test_a_long_file_is_scanned_in_pieces(tmp_path, read):
    """Documents that cross the pieces in which a file is scanned are whole, with the hash that they have elsewhere."""
    lengths = [3_000_000, 5_000_000, 1_000_000]
    ids = np.full(sum(lengths), 7, np.uint16)
    ids[np.cumsum(lengths) - 1] = END
    np.save(tmp_path / "a.npy", ids)
    np.save(tmp_path / "b.npy", ids[3_000_000:8_000_000])
    source = read(tmp_path / "a.npy", shard_tokens=1 << 25)
    (shard,) = source.shards()
    assert np.diff(source.open(shard).offsets).tolist() == lengths
    assert hashes_of(read(tmp_path / "b.npy"))[0] == int(source.open(shard).hashes[1])


@pytest.mark.parametrize("suffix", [".npy", ".bin", ".parquet"])
def test_an_id_beyond_the_vocabulary_is_told_with_its_place(tmp_path, read, suffix):
    """An id that the model does not have is an error that names the file and the position."""
    path = tmp_path / f"a{suffix}"
    ids = [*range(50), END, 100, END]
    if suffix == ".npy":
        np.save(path, np.array(ids))
    elif suffix == ".bin":
        np.array(ids, "<u2").tofile(path)
    else:
        pq.write_table(table_of([ids[:51], ids[51:]]), path)
    place = "position 0 of row 1 of" if suffix == ".parquet" else "position 51 of"
    with pytest.raises(DataError, match=rf"{place} {path} is 100, .* 0 to 99"):
        read(path).shards()


def test_a_negative_id_is_refused(tmp_path, read):
    """Ids below zero, which mark what a loss leaves out elsewhere, are no token ids here."""
    for number, dtype in enumerate((np.int32, np.int64)):
        np.save(tmp_path / f"{number}.npy", np.array([1, -100, END], dtype))
        with pytest.raises(DataError, match="position 1"):
            read(tmp_path / f"{number}.npy").shards()


@pytest.mark.parametrize(
    ("name", "write", "sentence"),
    [
        ("a.npy", lambda path: np.save(path, np.zeros((2, 3), np.int64)), r"shape \(2, 3\)"),
        ("a.npy", lambda path: np.save(path, np.zeros(3)), "float64"),
        ("a.npy", lambda path: np.save(path, np.array([{}]), allow_pickle=True), "cannot be read"),
        ("a.npy", lambda path: path.write_bytes(b"no array"), "the type it was written with"),
        ("a.bin", lambda path: path.write_bytes(llm_c_header(9)), "header of llm.c for 9 ids"),
        ("a.bin", lambda path: path.write_bytes(b"odd"), "not a multiple of the size of uint16"),
        ("a.parquet", lambda path: path.write_bytes(b"no table"), "cannot be read"),
        ("a.arrow", lambda path: path.write_bytes(b"no table"), "cannot be read"),
        (
            "a.parquet",
            lambda path: pq.write_table(table_of([[1]], name="text"), path),
            "no column 'input_ids' but text",
        ),
        ("a.parquet", lambda path: pq.write_table(table_of(["x"], pa.string()), path), "lists of integers"),
        ("a.parquet", lambda path: pq.write_table(table_of([[1], None]), path), "lacks token ids"),
        ("a.csv", lambda path: path.write_text("1,2"), "suffix"),
    ],
)
def test_what_holds_no_token_ids_is_refused(tmp_path, read, name, write, sentence):
    """A file that is not what its suffix says, or holds something else, is an error that names it."""
    write(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}.*{sentence}|{sentence}.*{name}"):
        read(tmp_path / name).shards()


def documents_and_masks(source):
    found = []
    for shard in source.shards():
        tokens = source.open(shard)
        masks = np.ones(len(tokens.ids), np.bool_) if tokens.loss_mask is None else tokens.loss_mask[:]
        bounds = zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True)
        found += [(tokens.ids[begin:end].tolist(), masks[begin:end].astype(int).tolist()) for begin, end in bounds]
    return found


def write_rows(path, **columns):
    """Write the rows as a table in the format of the suffix."""
    table = pa.table({name: pa.array(rows) for name, rows in columns.items()})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)


CHAT = [[5, 6, END, 7, END, 0, 0], [0, 8, 9, 3, 4, 5, END]]
TRAINED = [[0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]]
REAL = [[1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1]]
LABELS = [
    [each if is_one else -100 for each, is_one in zip(*pair, strict=True)] for pair in zip(CHAT, TRAINED, strict=True)
]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("names", [["labels"], ["assistant_masks"], ["loss_mask", "labels"], ["completion_mask"]])
def test_labels_and_masks_say_what_is_trained_on(tmp_path, read, suffix, names):
    """A row with labels or a mask is one document with this loss mask; its padding is left out."""
    columns = {name: LABELS if name == "labels" else TRAINED for name in names}
    write_rows(tmp_path / f"a{suffix}", input_ids=CHAT, attention_mask=REAL, **columns)
    found = documents_and_masks(read(tmp_path / f"a{suffix}"))
    assert found == [(CHAT[0][:5], TRAINED[0][:5]), (CHAT[1][1:], TRAINED[1][1:])]
    write_rows(tmp_path / f"b{suffix}", input_ids=CHAT, **columns)
    assert documents_and_masks(read(tmp_path / f"b{suffix}")) == list(zip(CHAT, TRAINED, strict=True))


def test_masks_of_several_columns_are_one(tmp_path, read):
    """What any column leaves out is not trained on, and shards of other masks have other fingerprints."""
    fingerprints = set()
    for number, mask in enumerate(([1, 1, 1], [0, 1, 1], [0, 0, 1])):
        path = tmp_path / f"{number}.parquet"
        write_rows(path, input_ids=[[1, 2, 3]], assistant_masks=[[1, 0, 1]], completion_mask=[mask])
        assert documents_and_masks(read(path)) == [([1, 2, 3], [mask[0], 0, mask[2]])]
        fingerprints |= {shard.fingerprint for shard in read(path).shards()}
    assert len(fingerprints) == 2


def test_rows_that_are_trained_on_as_a_whole_are_as_without_labels(tmp_path, read):
    """Labels that repeat all ids change no document and no fingerprint."""
    write_rows(tmp_path / "a.parquet", input_ids=DOCUMENTS)
    ones = [[1] * len(document) for document in DOCUMENTS]
    write_rows(tmp_path / "b.parquet", input_ids=DOCUMENTS, labels=DOCUMENTS, attention_mask=ones)
    first, second = (read(tmp_path / f"{name}.parquet") for name in "ab")
    assert all_documents(second) == DOCUMENTS
    assert [each.fingerprint for each in first.shards()] == [each.fingerprint for each in second.shards()]


def test_positions_begin_documents(tmp_path, read):
    """Positions that begin again within a row begin a document there."""
    write_rows(
        tmp_path / "a.parquet",
        input_ids=[[1, 2, 3, 4, 0]],
        position_ids=[[0, 1, 0, 1, 0]],
        attention_mask=[[1, 1, 1, 1, 0]],
    )
    assert all_documents(read(tmp_path / "a.parquet")) == [[1, 2, END], [3, 4, END]]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"labels": [[1, 2, 3], [5, 6, END]]}, "label of the id at position 0 of row 1 of .* is 5, but the id is 4"),
        ({"labels": [[1, 2, 3], [4, 5]]}, "row 1 of .* has 2 values in the column 'labels' for 3 token ids"),
        ({"labels": [[1, 2, 3], None]}, "lacks values in column 'labels'"),
        ({"labels": [[-100] * 3] * 2}, "no token of .* is trained on"),
        ({"labels": ["a", "b"]}, "column 'labels' of .* holds string"),
        ({"attention_mask": [[1, 1, 1], [1, 0, 1]]}, "hides the id at position 1 of row 1 .* within the row"),
        ({"attention_mask": [[1, 1, 1], [1, 2, 2]]}, "has 2 for the id at position 1 of row 1"),
        ({"position_ids": [[0, 1, 2], [3, 4, 5]]}, "has 3 for the id at position 0 of row 1"),
    ],
)
def test_columns_that_cannot_be_used_are_refused(tmp_path, read, columns, sentence):
    """Labels that are not the ids, and masks and positions that are none, are told with their place."""
    write_rows(tmp_path / "a.parquet", input_ids=[[1, 2, 3], [4, 5, 6]], **columns)
    with pytest.raises(DataError, match=sentence):
        read(tmp_path / "a.parquet").shards()


def test_columns_that_are_not_used_are_told_once(tmp_path, read, caplog):
    """Other columns are named when a table is converted."""
    write_rows(tmp_path / "a.parquet", input_ids=[[1, 2]], labels=[[1, 2]], token_type_ids=[[0, 0]], text=["x"])
    for _ in range(2):
        read(tmp_path / "a.parquet").shards()
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/a.parquet: only input_ids, labels are used, not token_type_ids, text"
    ]


def test_splits_that_are_read_together_are_told(tmp_path, read, caplog):
    """The folder of a saved dataset with several splits is read as a whole, which is said."""
    for name in ("train", "test"):
        (tmp_path / "saved" / name).mkdir(parents=True)
        (tmp_path / "saved" / name / "state.json").write_text("{}")
        write_rows(tmp_path / "saved" / name / "data.arrow", input_ids=DOCUMENTS)
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert len(all_documents(read(tmp_path / "saved"))) == 2 * len(DOCUMENTS)
    assert "holds the splits test, train of a dataset, and all of them are read" in caplog.text
    caplog.clear()
    assert all_documents(read(tmp_path / "saved/train")) == DOCUMENTS
    assert not caplog.records


def test_files_that_a_saved_dataset_does_not_list_are_told(tmp_path, read, caplog):
    """A result of map beside the files of a saved dataset is read too, which is said."""
    (tmp_path / "saved").mkdir()
    for name in ("data-00000-of-00001", "cache-0123456789abcdef"):
        write_rows(tmp_path / f"saved/{name}.arrow", input_ids=DOCUMENTS)
    state = tmp_path / "saved/state.json"
    state.write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    assert len(all_documents(read(tmp_path / "saved"))) == 2 * len(DOCUMENTS)
    assert "(cache-0123456789abcdef.arrow), and all of them are read" in caplog.text
    caplog.clear()
    (tmp_path / "saved/cache-0123456789abcdef.arrow").unlink()
    assert all_documents(read(tmp_path / "saved")) == DOCUMENTS
    assert not caplog.records


def test_a_path_that_leads_to_nothing_is_told(tmp_path, read):
    """A missing file, an empty folder, a glob without match and empty files are errors that name the path."""
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "none.npy", np.zeros(0, np.uint16))
    for name in ("missing.npy", "empty", "*.bin", "none.npy"):
        with pytest.raises(DataError, match=f"{tmp_path}"):
            read(tmp_path / name).shards()


def test_the_dtype_can_be_told(tmp_path, read):
    """A raw file is read as what the settings or a file beside it say, and a wrong word there is an error."""
    np.array(flat(), "<i8").tofile(tmp_path / "a.bin")
    assert all_documents(read(tmp_path / "a.bin", dtype="int64")) == DOCUMENTS
    (tmp_path / "a.bin.json").write_text('{"dtype": "int64"}')
    assert all_documents(read(tmp_path / "a.bin")) == DOCUMENTS
    for text in ('{"dtype": "float16"}', "[]", "no"):
        (tmp_path / "a.bin.json").write_text(text)
        with pytest.raises(DataError, match=r"a\.bin"):
            read(tmp_path / "a.bin", shard_tokens=36).shards()


def litdata_chunk(documents, dtype):
    items = [np.array(document, dtype).tobytes() for document in documents]
    ends = np.cumsum([4 * (len(items) + 2), *map(len, items)])
    return np.array([len(items), *ends], "<u4").tobytes() + b"".join(items)


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4", "<i8"])
@pytest.mark.parametrize("vocabulary_size", [100, 1 << 16, 128256])
def test_the_type_of_raw_ids_is_found_by_what_they_can_be(tmp_path, read, suffix, dtype, vocabulary_size):
    """Halves of wide ids are not taken for ids, nor pairs of narrow ones, whatever the size of the vocabulary."""
    path = tmp_path / f"a{suffix}"
    np.array(flat(), dtype).tofile(path)
    assert all_documents(read(path, vocabulary_size=vocabulary_size)) == DOCUMENTS
    path.write_bytes(litdata_chunk(DOCUMENTS, dtype))
    assert all_documents(read(path, vocabulary_size=vocabulary_size)) == DOCUMENTS


def test_an_index_beside_tells_the_type_of_raw_ids(tmp_path, read):
    """The type is that of Megatron's index, even if the ids alone could be of another one."""
    np.array([0, END, 0, END], "<u4").tofile(tmp_path / "a.bin")
    for code, documents in ((4, [[0, END], [0, END]]), (8, [[0, 0, END], [0, 0, 0, END], [0]])):
        (tmp_path / "a.idx").write_bytes(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([code]) + bytes(16))
        assert all_documents(read(tmp_path / "a.bin", folder=tmp_path / str(code))) == documents
    (tmp_path / "a.idx").write_bytes(b"MMIDIDX\0\0" + np.array([1], "<u8").tobytes() + bytes([7]) + bytes(16))
    with pytest.raises(DataError, match=r"declared to hold float32"):
        read(tmp_path / "a.bin").shards()


@pytest.mark.parametrize(
    ("ids", "vocabulary_size", "types"),
    [
        ([5, 0, 6, 0], 100, "uint16 as well as uint32"),
        ([0] * 100, 100, "uint16 as well as uint32"),
        ([5, 60000, 7], 128256, "any two bytes are an id .* as uint16 none of them is the end-of-text id"),
    ],
)
def test_a_type_that_nothing_proves_is_asked_for(tmp_path, read, ids, vocabulary_size, types):
    """Raw ids that may be of several types, or of any, are refused with the setting that decides."""
    np.array(ids, "<u2").tofile(tmp_path / "a.bin")
    options = {"vocabulary_size": vocabulary_size}
    with pytest.raises(DataError, match=rf"a\.bin, as {types}.*set data\.dtype"):
        read(tmp_path / "a.bin", **options).shards()
    assert read(tmp_path / "a.bin", dtype="uint16", **options).shards()


def test_a_compressed_chunk_is_refused(tmp_path, read):
    """A chunk of litdata whose header cannot be read is not read as ids."""
    (tmp_path / "chunk-0-0.bin").write_bytes(np.array(flat(), "<u2").tobytes())
    (tmp_path / "index.json").write_text(json.dumps({"chunks": [{"filename": "chunk-0-0.bin"}], "config": {}}))
    with pytest.raises(DataError, match=r"chunk-0-0\.bin is a chunk of litdata"):
        read(tmp_path).shards()


def test_ids_of_a_former_wrong_type_are_not_kept(tmp_path, read):
    """What is kept of a file depends on the type it was read as."""
    np.array(flat(), "<u4").tofile(tmp_path / "a.bin")
    assert all_documents(read(tmp_path / "a.bin", dtype="uint16")) != DOCUMENTS
    (tmp_path / "a.bin.json").write_text('{"dtype": "uint16"}')
    assert all_documents(read(tmp_path / "a.bin")) != DOCUMENTS
    (tmp_path / "a.bin.json").unlink()
    assert all_documents(read(tmp_path / "a.bin")) == DOCUMENTS


def test_files_are_read_once(tmp_path, read):
    """A later start takes what was found and converted from the folder, even if the rest of a table is gone."""
    pq.write_table(table_of(DOCUMENTS), tmp_path / "a.parquet")
    before = read(tmp_path / "a.parquet")
    documents, fingerprint = all_documents(before), before.fingerprint()
    status = (tmp_path / "a.parquet").stat()
    (tmp_path / "a.parquet").write_bytes(b"\0" * status.st_size)
    os.utime(tmp_path / "a.parquet", ns=(status.st_atime_ns, status.st_mtime_ns))
    after = read(tmp_path / "a.parquet")
    assert (all_documents(after), after.fingerprint()) == (documents, fingerprint)


def test_a_damaged_conversion_is_made_again(tmp_path, read):
    """What was converted and then damaged on the disk is converted anew."""
    pq.write_table(table_of(DOCUMENTS), tmp_path / "a.parquet")
    fingerprint = read(tmp_path / "a.parquet").fingerprint()
    for path in (tmp_path / "kept").rglob("shard-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    source = read(tmp_path / "a.parquet")
    assert (all_documents(source), source.fingerprint()) == (DOCUMENTS, fingerprint)


def test_a_file_that_changes_is_read_anew(tmp_path, read):
    """Another start sees the new documents; the run that has seen the old ones gets an error with the file's name."""
    path = tmp_path / "a.npy"
    np.save(path, np.array([1, END], np.uint16))
    old = read(path)
    shards = old.shards()
    np.save(path, np.array([2, END, 3, END], np.uint16))
    with pytest.raises(StateError, match=rf"{path} .*changed"):
        old.open(shards[0])
    new = read(path)
    assert all_documents(new) == [[2, END], [3, END]]
    assert new.fingerprint() != old.fingerprint()


def replace_with(path, data):
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)


def flip(path, data):
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path, data: path.write_bytes(data + data[-8:]),
        lambda path, data: os.truncate(path, len(data) // 2),
        lambda path, data: os.truncate(path, 0),
        lambda path, data: replace_with(path, data + b"\0\0"),
        lambda path, data: flip(path, data[:-4] + b"\1\0\1\0"),
    ],
)
def test_ids_of_a_file_that_changes_in_use_are_not_used(tmp_path, read, suffix, change):
    """Whatever happens to a file of ids that is open, the next reading is an error with the name of the file."""
    path = tmp_path / f"a{suffix}"
    ids = np.array(flat() * 900, np.uint16)
    ids.tofile(path) if suffix == ".bin" else np.save(path, ids)
    source = read(path, shard_tokens=1 << 20)
    (shard,) = source.shards()
    tokens = source.open(shard)
    assert tokens.ids[:5].tolist() == flat()[:5]
    change(path, path.read_bytes())
    with pytest.raises(StateError, match=rf"{path} was changed since this run began"):
        tokens.ids[-300:]


def test_a_conversion_that_changes_in_use_is_made_again(tmp_path, read):
    """Converted ids that are overwritten while they are open are an error, and a later start converts them again."""
    pq.write_table(table_of(DOCUMENTS), tmp_path / "a.parquet")
    source = read(tmp_path / "a.parquet")
    tokens = source.open(source.shards()[0])
    for path in (tmp_path / "kept").rglob("shard-*"):
        flip(path, path.read_bytes()[:-200] + b"\1" * 200)
    with pytest.raises(TokensLost, match="run the same command to make it again"):
        tokens.ids[:]
    assert all_documents(read(tmp_path / "a.parquet")) == DOCUMENTS


def test_content_is_known_wherever_it_lies(tmp_path, read):
    """A file that was moved or copied keeps the fingerprints of its shards, and what was derived from them."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "ids.npy", np.array(flat(), np.uint16))
    first, second = (read(tmp_path / name) for name in ("a", "b"))
    assert [shard.fingerprint for shard in first.shards()] == [shard.fingerprint for shard in second.shards()]
    lengths = first.derive(first.shards()[0], "lengths", lengths_of)["lengths"].tolist()
    kept = second.derive(second.shards()[0], "lengths", lambda _: {})
    assert kept["lengths"].tolist() == lengths


@pytest.mark.parametrize("below", ["", "dataset"])
def test_a_token_cache_is_read_as_it_is(tmp_path, read, below):
    """The shards of a cache, or of the dataset in it, are served in place, and nothing is written there."""
    cache = DiskTokenCache(tmp_path / "cache", "dataset")
    for name, documents in (("b", DOCUMENTS[3:]), ("a", DOCUMENTS[:3])):
        cache.put(name, [tokens_of(documents)], {})
    before = sorted((tmp_path / "cache").rglob("*"))
    source = read(tmp_path / "cache" / below)
    source.derive(source.shards()[0], "lengths", lengths_of)
    assert all_documents(source) == DOCUMENTS
    assert sorted((tmp_path / "cache").rglob("*")) == before


def test_a_cache_of_several_datasets_must_be_told_apart(tmp_path, read):
    """A cache that holds two datasets is an error that names them."""
    for name in ("one", "two"):
        DiskTokenCache(tmp_path / "cache", name).put("a", [tokens_of(DOCUMENTS)], {})
    with pytest.raises(DataError, match="one, two"):
        read(tmp_path / "cache").shards()


def test_a_cache_of_another_vocabulary_is_refused(tmp_path, read):
    """An id in a cache that the vocabulary lacks is told with its shard and position."""
    DiskTokenCache(tmp_path / "cache", "dataset").put("a", [tokens_of([[1, 100, END]])], {})
    source = read(tmp_path / "cache")
    with pytest.raises(DataError, match=r"position 1 of the shard 'a' .* is 100"):
        source.open(source.shards()[0])


def test_distant_files_are_copied_once(tmp_path, read):
    """A URL is fetched into the folder, again only when the place tells of other bytes."""
    remote = fsspec.filesystem("memory")
    try:
        for documents in (DOCUMENTS, DOCUMENTS[::-1]):
            np.save(tmp_path / "a.npy", np.array(flat(documents), np.uint16))
            remote.pipe_file("/data/a.npy", (tmp_path / "a.npy").read_bytes())
            for path in ("memory://data/a.npy", "memory://data", "memory://data/*.npy"):
                assert all_documents(read(path)) == documents
        with pytest.raises(DataError, match=r"memory://data/b\.npy"):
            read("memory://data/b.npy").shards()
    finally:
        remote.rm("/data", recursive=True)
    assert len(list((tmp_path / "kept/.downloads").iterdir())) == 2


def test_the_folder_must_be_ours(tmp_path, read):
    """Somebody else's folder is not used to keep things in."""
    np.save(tmp_path / "a.npy", np.array(flat(), np.uint16))
    with pytest.raises(ConfigurationError, match="did not write"):
        read(tmp_path / "a.npy", folder=tmp_path).shards()


@pytest.mark.parametrize("url", ["nowhere://AKIA:CANARY/def@bucket/x.npy", "nowhere://bucket/x.npy?sig=CANARY"])
def test_a_place_that_cannot_be_read_is_named_without_its_secrets(url, read):
    """A secret in the path of token files, slashes included, stands in no message."""
    with pytest.raises(DataError, match=r"nowhere://bucket/x\.npy") as caught:
        read(url).shards()
    assert "CANARY" not in str(caught.value)


def test_conversions_of_version_0_1_are_found_again():
    """The text that names folders of conversions is that of version 0.1."""
    key = ReadOptions(END, 100, "auto", "input_ids", 35).to_key()
    assert key == "Reading(end_of_text=99, vocabulary_size=100, dtype='auto', column='input_ids', shard_tokens=35)"
