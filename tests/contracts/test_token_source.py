"""Every token source keeps the port's promise."""

from __future__ import annotations

import shutil
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_source.files import FilesTokenSource
from holdfast.adapters.token_source.memory import MemoryTokenSource
from holdfast.ports.testing.token_cache import mask_in, tokens_of
from holdfast.ports.testing.token_source import END_OF_TEXT, TokenSourceContract


class TestMemoryTokenSource(TokenSourceContract):
    @pytest.fixture
    def new_source(self):
        return lambda documents: MemoryTokenSource({"b": tokens_of(documents[3:]), "a": tokens_of(documents[:3])})


class FilesContract(TokenSourceContract):
    def write(self, folder, documents):
        """Write the documents into the folder."""
        raise NotImplementedError

    @pytest.fixture
    def folders(self):
        return {}

    @pytest.fixture
    def open_folder(self, folders):
        def open_folder(folder):
            paths = [str(path) for path in sorted((folder / "data").iterdir())]
            options = {"end_of_text": END_OF_TEXT, "vocabulary_size": END_OF_TEXT + 1, "shard_tokens": 100}
            source = FilesTokenSource(paths, folder=folder / "kept", **options)
            folders[source] = folder
            return source

        return open_folder

    @pytest.fixture
    def new_source(self, tmp_path, open_folder):
        numbers = count()

        def new(documents):
            folder = tmp_path / str(next(numbers))
            (folder / "data").mkdir(parents=True)
            self.write(folder / "data", documents)
            return open_folder(folder)

        return new

    @pytest.fixture
    def reopen(self, folders, open_folder):
        return lambda source: open_folder(folders[source])

    @pytest.fixture
    def destroy(self, folders):
        return lambda source: shutil.rmtree(folders.pop(source))


def flat(documents):
    return [token for document in documents for token in document]


class TestFilesTokenSourceOfRawIds(FilesContract):
    def write(self, folder, documents):
        np.array(flat(documents), "<u2").tofile(folder / "a.bin")


class TestFilesTokenSourceOfNumpyFiles(FilesContract):
    def write(self, folder, documents):
        np.save(folder / "a.npy", np.array(flat(documents[:3]), np.int64))
        np.save(folder / "b.npy", np.array(flat(documents[3:]), np.uint32))


class TestFilesTokenSourceOfParquet(FilesContract):
    def write(self, folder, documents):
        for name, part in (("a", documents[:3]), ("b", documents[3:])):
            table = pa.table({"input_ids": [document[:-1] for document in part]})
            pq.write_table(table.cast(pa.schema([("input_ids", pa.list_(pa.int32()))])), folder / f"{name}.parquet")


class TestFilesTokenSourceOfATokenCache(FilesContract):
    def write(self, folder, documents):
        cache = DiskTokenCache(folder / "cache", "dataset")
        for name, part in (("b", documents[3:]), ("a", documents[:3])):
            cache.put(name, [tokens_of(part)], {})

    def test_the_loss_mask_of_the_cache_is_kept(self, tmp_path):
        """Tokens that are read in place are trained on as the cache that made them says."""
        shard = tokens_of([[5, 6, END_OF_TEXT], [2, 3, END_OF_TEXT]], modulus=2)
        DiskTokenCache(tmp_path / "cache", "dataset").put("a", [shard], {})
        options = {"end_of_text": END_OF_TEXT, "vocabulary_size": END_OF_TEXT + 1, "shard_tokens": 100}
        source = FilesTokenSource([str(tmp_path / "cache")], folder=tmp_path / "kept", **options)
        assert [mask_in(source.open(each)) for each in source.shards()] == [mask_in(shard)]
