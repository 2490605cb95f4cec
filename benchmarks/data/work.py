"""What Holdfast does, as tasks for processes of their own."""

from __future__ import annotations

import threading
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from benchmarks.data.child import peak_memory, private_memory, reset_peak
from benchmarks.data.corpus import LENGTH, ROWS, texts_of
from benchmarks.data.tokenizer import NewTokenizer
from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.application.data.feed import Feed
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.prepare.data_streams import cached_batches, streamed_batches
from holdfast.configs.sections.data import FilesDataSettings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import ConcatPacking
from holdfast.domain.data.sample_order import RankShard

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from holdfast.application.data.feed import BatchStream
    from holdfast.domain.data.batch import Batch

MIXTURE = Mixture(0, (Stage(0, (1,)),))

_KEY = "benchmark"
_GROWN_SHARD_BYTES = 4 << 20  # so that there are hundreds of shards, as a large corpus has
_PACKING, _NOTHING_HELD_OUT, _SHARE = ConcatPacking(LENGTH), Holdout(0.0, seed=0), RankShard(ROWS)


def open_reader(folder: str, tokenizer: str, backend: str) -> TextReader:
    """Return a reader whose tokenizer has met no text."""
    encoder = TextDocumentEncoder(NewTokenizer(tokenizer, backend))
    return TextReader(FilesDataSource([folder]), encoder, RejectedRecords("stop"))


def open_checked_reader(folder: str, tokenizer: str, backend: str) -> TextReader:
    """Return a reader as a run has it: its tokenizer was compared with the reference."""
    encoder = HuggingfaceTokenizer.load(tokenizer, backend=backend)
    encoder.encode(["The first document is compared as well."])
    return TextReader(FilesDataSource([folder]), TextDocumentEncoder(encoder), RejectedRecords("stop"))


def stream_of(reader: TextReader, folder: str) -> BatchStream:
    """Return one epoch in stream mode, with the settings that a run has by itself."""
    data = FilesDataSettings(path=(folder,), sequence_length=LENGTH, mode="stream", epochs=1)
    return streamed_batches([reader], MIXTURE, _PACKING, _NOTHING_HELD_OUT, _SHARE, data=data)


def open_cache(cache: str) -> DiskTokenCache:
    """Return the cache in a folder."""
    return DiskTokenCache(Path(cache), _KEY, max_open=1024)


def fill_cache(reader: TextReader, cache: str, shard_bytes: int | None = None) -> DiskTokenCache:
    """Return a cache with all tokens of the reader's source."""
    tokens = open_cache(cache)
    PrepareTokens(reader, tokens, RejectedRecords("stop"), shard_bytes=shard_bytes, workers=usable_cpus()).run()
    return tokens


def cached(tokens: DiskTokenCache, epochs: int | None) -> BatchStream:
    """Return the rows of a cache, fully shuffled."""
    return cached_batches([tokens], MIXTURE, _PACKING, _NOTHING_HELD_OUT, _SHARE, epochs=epochs)


def batches_of(stream: BatchStream, cursor: Cursor | None = None, *, ahead: int = 4) -> Generator[Batch]:
    """Yield batches as the loop gets them."""
    feed = Feed(stream, prefetch=ahead)
    try:
        feed.seek(cursor or Cursor())
        yield from iter(feed.next, None)
    finally:
        feed.close()


def stream(
    folder: str, tokenizer: str, backend: str, *, ahead: int = 4, derived: bool = False, checked: bool = False
) -> dict[str, float]:
    """Measure files to batches, in stream mode; ``derived`` asks for all arrays that a model takes, too."""
    reader = (open_checked_reader if checked else open_reader)(folder, tokenizer, backend)
    began = time.perf_counter()
    reader.source.units()
    start_up = time.perf_counter() - began
    began = time.perf_counter()
    batches = batches_of(stream_of(reader, folder), ahead=ahead)
    first = next(batches)
    waited = time.perf_counter() - began
    tokens = _drain(chain([first], batches), derived=derived)
    return {"tokens": tokens, "seconds": time.perf_counter() - began, "start_up": start_up, "first": waited}


def prepare(folder: str, tokenizer: str, backend: str, cache: str) -> dict[str, float]:
    """Measure files to a cache on disk."""
    reader = open_reader(folder, tokenizer, backend)
    began = time.perf_counter()
    shards = fill_cache(reader, cache).shards()
    return {"tokens": sum(shard.num_tokens for shard in shards), "seconds": time.perf_counter() - began}


def read_cached(cache: str, passes: int, *, ahead: int, derived: bool) -> dict[str, float]:
    """Measure ``passes`` over a cache, behind one that is not counted, ``ahead`` batches prepared ahead."""
    tokens = open_cache(cache)
    stream = cached(tokens, passes + 1)
    before = len(list(batches_of(cached(tokens, 1))))
    batches = batches_of(stream, ahead=ahead)
    for _ in islice(batches, before):
        pass
    began = time.perf_counter()
    return {"tokens": _drain(batches, derived=derived), "seconds": time.perf_counter() - began}


def count_cached(cache: str) -> dict[str, Any]:
    """Count each id in the full rows of one pass over a cache."""
    counts = np.zeros(1 << 16, np.int64)
    for batch in batches_of(cached(open_cache(cache), 1)):
        full = batch.input_ids[batch.row_lengths == LENGTH]
        counts += np.bincount(full.reshape(-1), minlength=len(counts))
    return {"counts": counts.tolist()}


def grow(folder: str, tokenizer: str, warm: str, mode: str, cache: str) -> dict[str, float]:
    """Measure one pass in ``mode``, text to batches, and its peaks of memory; the words of ``warm`` are met before."""
    encoder = NewTokenizer(tokenizer, "gigatoken")
    encoder.encode(list(texts_of(warm)))
    limits = Limits(unit_bytes=_GROWN_SHARD_BYTES) if mode == "cache" else None
    reader = TextReader(FilesDataSource([folder], limits=limits), TextDocumentEncoder(encoder), RejectedRecords("stop"))
    reset_peak()
    with _PrivatePeak() as private:
        began = time.perf_counter()
        if mode == "stream":
            batches = batches_of(stream_of(reader, folder))
        else:
            batches = batches_of(cached(fill_cache(reader, cache, shard_bytes=_GROWN_SHARD_BYTES), 1))
        tokens = _drain(batches, derived=False)
        seconds = time.perf_counter() - began
    return {"tokens": tokens, "seconds": seconds, "peak": peak_memory(), "private": private.bytes}


def resume_stream(folder: str, tokenizer: str) -> dict[str, Any]:
    """Measure the time to the first batch of a stream at several places."""
    encoder = NewTokenizer(tokenizer, "gigatoken")

    def batches_from(cursor: Cursor) -> Generator[Batch]:
        reader = TextReader(FilesDataSource([folder]), TextDocumentEncoder(encoder), RejectedRecords("stop"))
        return batches_of(stream_of(reader, folder), cursor)

    cursors = [Cursor(), *(batch.cursor for batch in batches_from(Cursor()))][:-1]  # after the last there is nothing
    return {"seconds": [_first(batches_from(cursors[int(place * len(cursors))])) for place in (0.1, 0.5, 0.9)]}


def resume_cache(cache: str) -> dict[str, float]:
    """Measure the time to the first batch of a cache on disk, in the middle of the third epoch."""
    middle = sum(shard.num_tokens for shard in open_cache(cache).shards()) * 5 // 2 // LENGTH
    seconds = _first(batches_of(cached(open_cache(cache), None), Cursor(middle)))
    return {"seconds": seconds}


def _first(batches: Generator[Batch]) -> float:
    began = time.perf_counter()
    next(batches)
    seconds = time.perf_counter() - began
    batches.close()
    return seconds


def _drain(batches: Iterable[Batch], *, derived: bool) -> int:
    tokens = 0
    for batch in batches:
        tokens += batch.num_tokens
        if derived:
            batch.position_ids, batch.document_ids, batch.loss_mask  # noqa: B018
    return tokens


class _PrivatePeak:
    """Watches the memory that no file backs: pages of the cache's files can be dropped at any time."""

    def __enter__(self) -> Self:
        self.bytes = private_memory()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.bytes = max(self.bytes, private_memory())
