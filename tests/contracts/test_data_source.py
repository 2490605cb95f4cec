"""Every data source keeps the port's promise."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, ClassVar

import fsspec
import pytest

from adapters.data_source.files import FilesDataSource
from adapters.data_source.memory import MemoryDataSource
from adapters.data_source.python_library import PythonLibraryDataSource
from domain.errors import DataError
from ports.testing.data_source import DataSourceContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ports.data_source import DataSource

TEXTS = {"a": ["one", "two\ntwo", "drei für 3", "四"], "b": [], "c": ["only"]}


def json_lines(texts: list[str]) -> bytes:
    return "\n\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in texts).encode()


class TestMemoryDataSource(DataSourceContract):
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
        return MemoryDataSource({"unit": ["good", 5]}), 1

    @pytest.fixture
    def empty(self) -> DataSource:
        return MemoryDataSource({})


class LocalFiles(DataSourceContract):
    """Three files on a disk, and what may happen to them."""

    files: ClassVar[dict[str, bytes]]
    bad: ClassVar[tuple[str, bytes, int]]

    def open(self, folder: Path) -> DataSource:
        return FilesDataSource([str(folder)], document_bytes=8)

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
        return self.open(tmp_path / "bad"), position

    @pytest.fixture
    def empty(self, tmp_path) -> DataSource:
        (tmp_path / "empty").mkdir()
        return self.open(tmp_path / "empty")


class TestFilesDataSourceTxt(LocalFiles):
    files: ClassVar = {
        "a.txt": "one\ntwo two two\n\n\n\n\n\n\n\n\n\nfür 四四四四\r\nend".encode(),
        "b.md": b"",
        "c.py": b"only",
    }
    bad = ("bad.txt", b"12 4567\n90\xff\n", 10)


class TestFilesDataSourceTxtGz(LocalFiles):
    files: ClassVar = {name + ".gz": gzip.compress(content) for name, content in TestFilesDataSourceTxt.files.items()}
    bad = ("bad.txt.gz", gzip.compress(b"12 4567\n90\0\n"), 10)


class TestFilesDataSourceJsonl(LocalFiles):
    files: ClassVar = {f"{name}.jsonl": json_lines(texts) for name, texts in TEXTS.items()}
    bad = ("bad.jsonl", b'{"text": "good"}\n{"text": 3}\n', 17)


class TestFilesDataSourceJsonlGz(LocalFiles):
    files: ClassVar = {name + ".gz": gzip.compress(content) for name, content in TestFilesDataSourceJsonl.files.items()}
    bad = ("bad.ndjson.gz", gzip.compress(b'{"text": "good"}\n{"text": "cut\n'), 17)


class TestFilesDataSourceInMemory(DataSourceContract):
    @pytest.fixture
    def bucket(self, tmp_path):
        files = fsspec.filesystem("memory")
        for name, content in TestFilesDataSourceJsonl.files.items():
            files.pipe_file(f"{tmp_path}/good/{name}", content)
        files.pipe_file(f"{tmp_path}/good/a.jsonl", json_lines(["longer than a buffer" * 20_000] * 3))
        files.pipe_file(f"{tmp_path}/bad/bad.txt", b"12 4567\n90\xff\n")
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
        return FilesDataSource([f"{bucket}/bad"], document_bytes=8), 10

    @pytest.fixture
    def empty(self, bucket) -> DataSource:
        return FilesDataSource([f"{bucket}/none/*.txt"])


class TestPythonLibraryDataSource(LocalFiles):
    files: ClassVar = {"a.py": b"import b\n", "b.py": b"print('b')\n" * 60_000, "c.py": "# für\n".encode()}

    def open(self, folder: Path) -> DataSource:
        return PythonLibraryDataSource(str(folder))

    @pytest.fixture
    def damaged(self, tmp_path) -> tuple[DataSource, int]:
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "bad.py").write_bytes(b"#" * (64 << 10) + b"\n0\0\n")
        return self.open(tmp_path / "bad"), (64 << 10) + 2


def test_a_file_that_is_gone_is_named(tmp_path):
    """A file that was deleted since it was listed gives an error that names it, once it is read."""
    (tmp_path / "a.txt").write_text("text")
    source = FilesDataSource([str(tmp_path)])
    (unit,) = source.units()
    (tmp_path / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read"):
        next(source.read(unit))
