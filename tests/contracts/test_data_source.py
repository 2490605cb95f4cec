"""Every data source keeps the port's promise."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from typing import TYPE_CHECKING, ClassVar, final

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.compression import zstd
from holdfast.adapters.data_source.formats.records import Limits, Reading
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.data_source.mixture import MixtureDataSource
from holdfast.adapters.data_source.python_library import PythonLibraryDataSource
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import DataSource, Rejected
from holdfast.ports.testing.data_source import DataSourceContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast.ports.data_source import Document, Unit

TEXTS = {"a": ["one", "two\ntwo", "drei für 3", "四", "five", "6"], "b": [], "c": ["only"]}
SMALL = Limits(document_bytes=8, unit_bytes=60)
PIECES = Reading(document_bytes=1)  # texts of a folder are cut


def json_lines(texts: list[str]) -> bytes:
    return "\n\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts).encode()


def comma_separated(texts: list[str]) -> bytes:
    rows = io.StringIO()
    csv.writer(rows).writerows([["id", "text"], *enumerate(texts)])
    return rows.getvalue().encode()


def parquet(texts: list[str | None]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), file, row_group_size=3)
    return file.getvalue()


def arrow(texts: list[str | None], kind=pa.ipc.new_file) -> bytes:
    file = io.BytesIO()
    table = pa.table({"text": pa.array(texts, pa.string())})
    with kind(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return file.getvalue()


class TestMemoryDataSource(DataSourceContract):
    tells_bytes = True

    @pytest.fixture
    def units(self) -> dict[str, list[str]]:
        return {name: list(texts) for name, texts in TEXTS.items()}

    @pytest.fixture
    def source(self, units) -> DataSource:
        return MemoryDataSource(units)

    @pytest.fixture
    def reopen(self, units) -> Callable[[], DataSource]:
        return lambda: MemoryDataSource(dict(reversed(units.items())))

    @pytest.fixture
    def change(self, units) -> Callable[[], None]:
        return lambda: units["c"].__setitem__(0, "other")

    @pytest.fixture
    def damaged(self) -> tuple[DataSource, int]:
        return MemoryDataSource({"unit": ["good", 5, "too"]}), 1

    @pytest.fixture
    def empty(self) -> DataSource:
        return MemoryDataSource({})


class TestMixtureDataSource(DataSourceContract):
    tells_bytes = True

    @pytest.fixture
    def units(self) -> dict[str, list[str]]:
        return {name: list(texts) for name, texts in TEXTS.items()}

    @pytest.fixture
    def source(self, units) -> DataSource:
        return MixtureDataSource({"x": MemoryDataSource(units), "a": MemoryDataSource({"a": ["other"]})})

    @pytest.fixture
    def reopen(self, units) -> Callable[[], DataSource]:
        return lambda: MixtureDataSource({"a": MemoryDataSource({"a": ["other"]}), "x": MemoryDataSource(units)})

    @pytest.fixture
    def change(self, units) -> Callable[[], None]:
        return lambda: units["c"].__setitem__(0, "other")

    @pytest.fixture
    def damaged(self) -> tuple[DataSource, int]:
        return MixtureDataSource({"part": MemoryDataSource({"unit": ["good", 5, "too"]})}), 1

    @pytest.fixture
    def empty(self) -> DataSource:
        return MixtureDataSource({"part": MemoryDataSource({})})


class LocalFiles(DataSourceContract):
    """Three files on a disk, and what may happen to them."""

    tells_bytes = True
    files: ClassVar[dict[str, bytes]]
    bad: ClassVar[tuple[str, bytes, int]]

    def open(self, folder: Path) -> DataSource:
        return FilesDataSource([str(folder)], limits=SMALL).with_reading(PIECES)

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        (tmp_path / "good").mkdir()
        for name, content in self.files.items():
            (tmp_path / "good" / name).write_bytes(content)
        return tmp_path / "good"

    @pytest.fixture
    def source(self, folder) -> DataSource:
        return self.open(folder)

    @pytest.fixture
    def reopen(self, folder) -> Callable[[], DataSource]:
        return lambda: self.open(folder)

    @pytest.fixture
    def change(self, folder) -> Callable[[], None]:
        path = folder / min(self.files)
        content, status = path.read_bytes(), path.stat()

        def rewrite() -> None:
            path.write_bytes(content.swapcase())  # of the same size, and a clock tick later
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))

        return rewrite

    @pytest.fixture
    def damaged(self, tmp_path) -> tuple[DataSource, int]:
        name, content, position = self.bad
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / name).write_bytes(content)
        return FilesDataSource([str(tmp_path / "bad")], limits=Limits(document_bytes=8)).with_reading(PIECES), position

    @pytest.fixture
    def empty(self, tmp_path) -> DataSource:
        (tmp_path / "empty").mkdir()
        return self.open(tmp_path / "empty")


class TestFilesDataSourceTxt(LocalFiles):
    files: ClassVar = {
        "a.txt": (
            "one\ntwo two two" + "\n" * 10 + "für 四四四四\r\nend and more\n of it\nand more of it\nand a last"
        ).encode(),
        "b.md": b"",
        "c.py": b"only",
    }
    bad = ("bad.txt", b"12 4567\n90\xff\n456\n789", 8)


class TestFilesDataSourceSeparated(LocalFiles):
    files: ClassVar = {
        "a.txt": "--".join(
            ["one two", "3", "for", "", "", "für 四四四四四四四四 " * 3, "\n", "end", "and more of it, and a last"]
        ).encode(),
        "b.md": b"----",
        "c.py": b"only",
    }
    bad = ("bad.txt", b"12 4567\n--\xff\n4--789", 10)

    @override
    def open(self, folder: Path) -> DataSource:
        return FilesDataSource([str(folder)], limits=SMALL).with_reading(Reading(separator="--"))

    @pytest.fixture
    def damaged(self, tmp_path) -> tuple[DataSource, int]:
        name, content, position = self.bad
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / name).write_bytes(content)
        return self.open(tmp_path / "bad"), position


class TestFilesDataSourceTxtGz(LocalFiles):
    files: ClassVar = {name + ".gz": gzip.compress(content) for name, content in TestFilesDataSourceTxt.files.items()}
    bad = ("bad.txt.gz", gzip.compress(b"12 4567\n90\0\n456\n789"), 8)


class TestFilesDataSourceJsonl(LocalFiles):
    files: ClassVar = {f"{name}.jsonl": json_lines(texts) for name, texts in TEXTS.items()}
    bad = ("bad.jsonl", b'{"text": "good"}\n{"text": 3}\n{"text": "too"}', 17)


class TestFilesDataSourceJsonlZst(LocalFiles):
    files: ClassVar = {
        name + ".zst": zstd.compress(content) for name, content in TestFilesDataSourceJsonl.files.items()
    }
    bad = ("bad.ndjson.zst", zstd.compress(b'{"text": "good"}\n{"text": "cut\n{"text": "too"}'), 17)


class TestFilesDataSourceCsv(LocalFiles):
    files: ClassVar = {f"{name}.csv": comma_separated(texts) for name, texts in TEXTS.items()}
    bad = ("bad.csv", b'text,id\n"good",1\n"cut" it,2\n"too, ""yes""",3', 17)


class TestFilesDataSourceCsvGz(LocalFiles):
    files: ClassVar = {name + ".gz": gzip.compress(content) for name, content in TestFilesDataSourceCsv.files.items()}
    bad = ("bad.csv.gz", gzip.compress(b"text,id\ngood,1\ncut\nto\xc3\xb6,3\n"), 15)


class TestFilesDataSourceParquet(LocalFiles):
    files: ClassVar = {f"{name}.parquet": parquet(texts) for name, texts in TEXTS.items()}
    bad = ("bad.parquet", parquet(["good", None, "too"]), 1)


class TestFilesDataSourceArrow(LocalFiles):
    files: ClassVar = {f"{name}.arrow": arrow(texts) for name, texts in TEXTS.items()}
    bad = ("bad.arrow", arrow(["good", None, "too"]), 1)


class TestFilesDataSourceArrowStream(LocalFiles):
    files: ClassVar = {f"{name}.arrow": arrow(texts, pa.ipc.new_stream) for name, texts in TEXTS.items()}
    bad = ("bad.feather", arrow(["good", None, "too"], pa.ipc.new_stream), 1)


class TestFilesDataSourceInMemory(DataSourceContract):
    tells_bytes = True

    @pytest.fixture
    def bucket(self, tmp_path):
        files = fsspec.filesystem("memory")
        for name, content in TestFilesDataSourceJsonl.files.items():
            files.pipe_file(f"{tmp_path}/good/{name}", content)
        files.pipe_file(f"{tmp_path}/good/a.jsonl", json_lines(["longer than a buffer" * 20_000] * 3))
        files.pipe_file(f"{tmp_path}/bad/bad.txt", b"12 4567\n90\xff\n456\n789")
        yield f"memory:/{tmp_path}"
        files.rm(str(tmp_path), recursive=True)

    @pytest.fixture
    def source(self, bucket) -> DataSource:
        return FilesDataSource([f"{bucket}/good"])

    @pytest.fixture
    def reopen(self, bucket) -> Callable[[], DataSource]:
        return lambda: FilesDataSource([f"{bucket}/good"])

    @pytest.fixture
    def change(self, bucket) -> Callable[[], None]:
        return lambda: fsspec.filesystem("memory").pipe_file(f"{bucket}/good/c.jsonl", json_lines(["ylno"]))

    @pytest.fixture
    def damaged(self, bucket) -> tuple[DataSource, int]:
        return FilesDataSource([f"{bucket}/bad"], limits=Limits(document_bytes=8)).with_reading(PIECES), 8

    @pytest.fixture
    def empty(self, bucket) -> DataSource:
        return FilesDataSource([f"{bucket}/none/*.txt"])


class TestHuggingfaceDataSourceSaved(DataSourceContract):
    """A folder that the library saved."""

    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        self.save(tmp_path / "good", [*TEXTS["a"], *TEXTS["c"]])
        return tmp_path / "good"

    def save(self, folder: Path, texts: list[str | None]) -> None:
        datasets.Dataset.from_dict({"text": texts, "id": range(len(texts))}).save_to_disk(folder, num_shards=1)

    def open(self, folder: Path, unit_bytes: int = 300) -> DataSource:
        return HuggingfaceDataSource(str(folder), limits=Limits(unit_bytes=unit_bytes))

    @pytest.fixture
    def source(self, folder) -> DataSource:
        return self.open(folder)

    @pytest.fixture
    def reopen(self, folder) -> Callable[[], DataSource]:
        return lambda: self.open(folder)

    @pytest.fixture
    def change(self, folder) -> Callable[[], None]:
        return lambda: self.save(folder, [*TEXTS["a"], "other"])

    @pytest.fixture
    def damaged(self, tmp_path) -> tuple[DataSource, int]:
        self.save(tmp_path / "bad", ["good", None, "too"])
        return self.open(tmp_path / "bad", 1 << 20), 1

    @pytest.fixture
    def empty(self, tmp_path) -> DataSource:
        return self.open(tmp_path / "none")


class TestHuggingfaceDataSourceStreamed(TestHuggingfaceDataSourceSaved):
    """A folder of data files, which the library reads one by one."""

    @pytest.fixture(autouse=True)
    def cache(self, monkeypatch, tmp_path):
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def save(self, folder: Path, texts: list[str | None]) -> None:
        folder.mkdir(exist_ok=True)
        for index, part in enumerate([texts[:3], texts[3:]] if len(texts) > 3 else [texts]):
            (folder / f"{index}.jsonl").write_bytes(json_lines(part).replace(b"\n\n", b"\n"))


class TestPythonLibraryDataSource(LocalFiles):
    files: ClassVar = {"a.py": b"import b\n", "b.py": b"print('b')\n" * 60_000, "c.py": "# für\n".encode()}

    def open(self, folder: Path) -> DataSource:
        return PythonLibraryDataSource(str(folder))

    @pytest.fixture
    def damaged(self, tmp_path) -> tuple[DataSource, int]:
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "bad.py").write_bytes(b"#" * ((64 << 10) - 1) + b"\n0\0\n" + b"#" * (64 << 10))
        return self.open(tmp_path / "bad"), 64 << 10


def test_a_file_that_is_gone_is_named(tmp_path):
    """A file that was deleted since it was listed is rejected by name, once it is read."""
    (tmp_path / "a.txt").write_text("text")
    source = FilesDataSource([str(tmp_path)])
    (unit,) = source.units()
    (tmp_path / "a.txt").unlink()
    (found,) = source.read(unit)
    assert isinstance(found, Rejected)
    assert found.end is None
    assert "a.txt cannot be read" in found.reason


@final
class Read(BasicDataSource):
    """Stands for a source of which so much was read."""

    def __init__(self, bytes_read: int, read_retries: int) -> None:
        self._read = bytes_read, read_retries

    @override
    def units(self) -> list[Unit]:
        return []

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        return iter([])

    @override
    def fingerprint(self) -> str:
        return ""

    @property
    @override
    def bytes_read(self) -> int:
        return self._read[0]

    @property
    @override
    def read_retries(self) -> int:
        return self._read[1]


def test_a_mixture_tells_what_was_read_of_all_its_parts():
    """Bytes and repeated reads of a mixture are the sums over its parts; one that cannot tell adds nothing."""
    mixture = MixtureDataSource({"a": Read(100, 2), "b": Read(5, 1), "c": HuggingfaceDataSource("nowhere")})
    assert (mixture.bytes_read, mixture.read_retries) == (105, 3)


def test_a_mixture_keeps_the_order_of_a_source_that_was_moved(tmp_path):
    """Units come by source, in its own order, which is that of the places where its files lay when it was chosen."""
    for name in ("x", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("a line")
    places = {str(tmp_path / "z"): "/a", str(tmp_path / "x"): "/b"}
    mixture = MixtureDataSource({name: FilesDataSource(places) for name in ("one", "one2")})
    names = [unit.name for unit in mixture.units()]
    moved = [f"{tmp_path}/z/a.txt", f"{tmp_path}/x/a.txt"]
    assert names == [f"{name}: {path}" for name in ("one2", "one") for path in moved]


def test_documents_in_memory_count_in_bytes():
    """What was read of documents in memory is the UTF-8 of those that came, each time that they came."""
    source = MemoryDataSource({"unit": ["für", 5, "abc"]})
    (unit,) = source.units()
    reading = source.read(unit)
    next(reading)
    assert source.bytes_read == 4
    list(reading)
    list(source.read(unit, 2))
    assert source.bytes_read == 10
