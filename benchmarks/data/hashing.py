"""The cost of hashing files while they are read: passes with and without it alternate in one process."""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.data.child import measure_apart
from benchmarks.data.corpus import texts_of
from benchmarks.data.tokenizer import NewTokenizer
from benchmarks.data.work import batches_of, fill_cache, stream_of
from benchmarks.report import Figure, interval_of_median
from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.data.plan import Plan

_PAIRS = 30
_MODES = {"stream": "raw to batches", "cache": "raw to the cache on disk"}


def measure_hashing(plan: Plan) -> Sequence[Figure]:
    """Measure the share of a pass over the copies, which all words are known of, that hashing takes."""
    figures = []
    for mode, what in _MODES.items():
        how = {"folder": plan.corpus.many, "tokenizer": plan.corpus.tokenizer, "mode": mode}
        found = measure_apart("hashing.alternate", pairs=_PAIRS if plan.rounds > 1 else 2, **how)
        for unit, pairs in found.items():
            middle, low, high = interval_of_median([with_it / without - 1 for with_it, without in pairs])
            name = f"{what}, gigatoken: {unit} that hashing adds, median of {len(pairs)} pairs [95 % interval]"
            is_goal = unit == "time"
            goal = "<= 2 % (the interval reaches it)" if is_goal else ""
            text = f"{middle:+.1%} [{low:+.1%}, {high:+.1%}]"
            figures.append(Figure(name, text, goal, low <= 0.02 if is_goal else None))
    return figures


def alternate(folder: str, tokenizer: str, mode: str, pairs: int) -> dict[str, Any]:
    """Measure passes in ``mode`` with hashing and without, which of the two is first alternates."""
    encoder = NewTokenizer(tokenizer, "gigatoken")
    encoder.encode(list(texts_of(folder)))
    read = _stream if mode == "stream" else _fill
    times: list[tuple[float, float]] = []
    processors: list[tuple[float, float]] = []
    for number in range(pairs + 1):
        found = {}
        for is_hashed in (True, False) if number % 2 else (False, True):
            reader = TextReader(FilesDataSource([folder]), TextDocumentEncoder(encoder), RejectedRecords("stop"))
            found[is_hashed] = _measured(read, reader, is_hashed=is_hashed)
        if number:  # the first pair warms up
            times.append((found[True][0], found[False][0]))
            processors.append((found[True][1], found[False][1]))
    return {"time": times, "processor time": processors}


def _measured(read: Callable[[TextReader], object], reader: TextReader, *, is_hashed: bool) -> tuple[float, float]:
    with _hashed(reader) if is_hashed else _unhashed():
        began, used = time.perf_counter(), time.process_time()
        read(reader)
        return time.perf_counter() - began, time.process_time() - used


@contextmanager
def _unhashed() -> Iterator[None]:
    read = "holdfast.adapters.data_source"
    with (
        patch(f"{read}.file_access.HashingTap", lambda *_: None),
        patch(f"{read}.verified_stream.BlockDigests.settle", lambda _self, _file, _number, data, *_, **__: data),
    ):
        yield


@contextmanager
def _hashed(reader: TextReader) -> Iterator[None]:
    yield
    files = reader.source.files()
    assert files is not None, "the source tells nothing of its files"
    assert all(file.content for file in files.files), "not all files were hashed"


def _stream(reader: TextReader) -> None:
    for _ in batches_of(stream_of(reader, ".")):
        pass


def _fill(reader: TextReader) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-hashing-") as cache:
        fill_cache(reader, str(Path(cache) / "cache"))
