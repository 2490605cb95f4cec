"""Whether Holdfast's tokens are the peers', before anything is timed."""

from __future__ import annotations

from collections import Counter
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.data.corpus import LENGTH
from benchmarks.data.peers import tokens_of_datasets
from benchmarks.data.work import batches_of, cached, fill_cache, open_checked_reader, open_reader, stream_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.application.data.feed import BatchStream

BACKENDS = ("huggingface", "tiktoken", "gigatoken")


def differences(folder: str, tokenizer: str) -> dict[str, list[str]]:
    """Return what of Holdfast, reading one file, does not give the rows that ``datasets``' tokens make."""
    documents, rows = tokens_of_datasets(folder, tokenizer)
    flat = [token for document in documents for token in document]
    expected = Counter(tuple(flat[begin : begin + LENGTH]) for begin in range(0, len(flat), LENGTH))
    whole = [row for row in expected.elements() if len(row) == LENGTH]
    found = [] if len(documents) > 1000 or Counter(map(tuple, rows)) == Counter(whole) else ["datasets' own grouping"]
    for backend in BACKENDS:
        reader = open_reader(folder, tokenizer, backend)
        if _rows(stream_of(reader, folder)) != expected:
            found.append(f"streamed with {backend}")
        with TemporaryDirectory() as cache:
            checked = open_checked_reader(folder, tokenizer, backend)
            if _rows(cached(fill_cache(checked, cache), 1)) != expected:
                found.append(f"cached with {backend}")
    return {"differences": found}


def _rows(stream: BatchStream) -> Counter[tuple[int, ...]]:
    rows: Counter[tuple[int, ...]] = Counter()
    for batch in batches_of(stream):
        rows.update(tuple(ids[:length]) for ids, length in _cut(batch.input_ids, batch.row_lengths))
    return rows


def _cut(ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> Sequence[tuple[list[int], int]]:
    pairs = zip(ids.tolist(), lengths.tolist(), strict=True)
    return [(row, length) for row, length in pairs if length]
