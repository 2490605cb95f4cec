"""Reads files of token ids again and again with a bit of one reading wrong, and writes a JSON line a reading.

python token_flip_driver.py WAY FOLDER writes FOLDER/found, with flip_reads.c preloaded. WAY is bin, npy, parquet,
arrow, cache or encrypted. The first line is of readings that are right: the hash of all documents, loss masks and
derived arrays, and how many readings.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_source.files import FilesTokenSource
from holdfast.domain.errors import TrainingError
from holdfast.ports.testing.token_cache import tokens_of
from holdfast.ports.testing.token_source import lengths_of

if TYPE_CHECKING:
    from holdfast.ports.token_source import TokenSource

SHIM = ctypes.CDLL(None)
END = 256
DOCUMENTS = [[*(np.arange(60) * number % END).tolist(), END] for number in range(600)]
OPTIONS = {"end_of_text": END, "vocabulary_size": END + 1, "shard_tokens": 20_000}

CACHES = ("cache", "encrypted")
KEYS = ShardEncryption(MemoryKeyProvider(bytes(32)))


def write(way: str, folder: Path) -> None:
    ids = np.concatenate(DOCUMENTS)
    if way == "bin":
        ids.astype("<u4").tofile(folder / "a.bin")
    elif way == "npy":
        np.save(folder / "a.npy", ids)
    elif way in CACHES:
        for name, part in (("a", DOCUMENTS[:300]), ("b", DOCUMENTS[300:])):
            cache_in(way, folder).put(name, [tokens_of(part, modulus=3)], {})
    else:
        labels = [[-100] * 30 + document[30:] for document in DOCUMENTS]
        table = pa.table({"input_ids": DOCUMENTS, "labels": labels})
        if way == "parquet":
            pq.write_table(table, folder / "a.parquet", row_group_size=100, compression="none")
        else:
            with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
                writer.write_table(table, 100)


def cache_in(way: str, folder: Path) -> DiskTokenCache:
    return DiskTokenCache(folder, "dataset", encryption=KEYS if way == "encrypted" else None)


def opened(way: str, folder: Path) -> TokenSource:
    if way in CACHES:
        return cache_in(way, folder)
    return FilesTokenSource([str(folder / f"a.{way}")], folder=folder / "kept", **OPTIONS)


def digest_of(source: TokenSource) -> str:
    digest = hashlib.sha256()
    for shard in source.shards():
        tokens = source.open(shard)
        lengths = source.derive(shard, "lengths", lengths_of)["lengths"]
        for array in (tokens.offsets, tokens.hashes, lengths):
            digest.update(array.tobytes())
        for begin in range(0, len(tokens.ids), 500):
            digest.update(tokens.ids[begin : begin + 500].tobytes())
            if tokens.loss_mask is not None:
                digest.update(tokens.loss_mask[begin : begin + 500].tobytes())
    return digest.hexdigest()


def read(way: str, root: Path, number: int) -> dict[str, object]:
    """Return what the documents are with the reading ``number`` wrong; errors are read again by another start."""
    shutil.rmtree(root / "used", ignore_errors=True)
    shutil.copytree(root / "sound", root / "used")
    found: dict[str, object] = {"number": number}
    SHIM.flip_arm(os.fsencode(root / "used"), ctypes.c_long(number))
    try:
        found["digest"] = digest_of(opened(way, root / "used"))
    except TrainingError as error:
        found["error"] = str(error)
    found["count"] = SHIM.flip_count()
    found["set aside"] = len(list((root / "used").glob(".quarantine/*")))
    SHIM.flip_arm(os.fsencode(root / "nothing"), ctypes.c_long(-1))
    return found


def main(way: str, folder: str) -> None:
    root = Path(folder)
    (root / "sound").mkdir()
    write(way, root / "sound")
    if way in CACHES:  # with the derived arrays
        digest_of(opened(way, root / "sound"))
    found = [read(way, root, -1)]
    found += [read(way, root, number) for number in range(int(str(found[0]["count"])))]
    (root / "found").write_text("".join(json.dumps(each) + "\n" for each in found))


if __name__ == "__main__":
    main(*sys.argv[1:])
