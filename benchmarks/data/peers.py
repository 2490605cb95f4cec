"""What others do with the same text, tokenizer and rows, as tasks for processes of their own."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data.corpus import LENGTH, ROWS, texts_of
from benchmarks.data.tokenizer import FIRST_TEXT
from holdfast.adapters.shared.device.host_memory import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_CORES = usable_cpus()
_GROUP_CHARACTERS = 1 << 20
_CHUNK_BYTES = "64MB"
_MAPPED_TOGETHER = 1000


def stream_datasets(folder: str, tokenizer: str, workers: int) -> dict[str, float]:
    """Measure ``datasets`` from files to batches: streamed, tokenized, grouped, loaded by torch."""
    from torch.utils.data import DataLoader

    rows = _tokenized(folder, tokenizer).map(_grouped, batched=True, batch_size=_MAPPED_TOGETHER)
    loader = DataLoader(rows.with_format("torch"), batch_size=ROWS, num_workers=workers)
    began = time.perf_counter()
    tokens = sum(batch["input_ids"].numel() for batch in loader)
    return {"tokens": tokens, "seconds": time.perf_counter() - began}


def tokens_of_datasets(folder: str, tokenizer: str) -> tuple[list[list[int]], list[list[int]]]:
    """Return the documents' ids and the rows that ``datasets`` makes of one folder."""
    documents = _tokenized(folder, tokenizer)
    rows = documents.map(_grouped, batched=True, batch_size=_MAPPED_TOGETHER)
    return [record["input_ids"] for record in documents], [record["input_ids"] for record in rows]


def encode_huggingface(folder: str, tokenizer: str) -> dict[str, float]:
    """Measure ``tokenizers`` alone, its texts in memory, on all cores."""
    from tokenizers import Tokenizer

    core = Tokenizer.from_file(tokenizer)
    core.encode_special_tokens = True
    groups = list(_groups(texts_of(folder)))
    began = time.perf_counter()
    tokens = sum(len(each) for group in groups for each in core.encode_batch_fast(group, add_special_tokens=False))
    return {"tokens": tokens + sum(map(len, groups)), "seconds": time.perf_counter() - began}


def encode_tiktoken(folder: str, tokenizer: str) -> dict[str, float]:
    """Measure ``tiktoken`` alone, its texts in memory, in a thread a core."""
    import tiktoken
    from tokenizers import Tokenizer

    from holdfast.adapters.tokenizer.backends.byte_level import group_plain, rank_tokens, split_pattern

    record = json.loads(Path(tokenizer).read_text(encoding="utf-8"))
    merger = Tokenizer.from_str(json.dumps({**record, "added_tokens": []})).model
    ranks = rank_tokens(record["model"], merger.tokenize).by_token
    pattern = group_plain(split_pattern(record["pre_tokenizer"]))  # its own is slower
    core = tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={})
    texts = list(texts_of(folder))
    began = time.perf_counter()
    with ThreadPoolExecutor(_CORES) as pool:
        encode = lambda text: len(core.encode_to_numpy(text, disallowed_special=()))  # noqa: E731
        tokens = sum(pool.map(encode, texts))
    return {"tokens": tokens + len(texts), "seconds": time.perf_counter() - began}


def parse_and_encode(folder: str, tokenizer: str, threads: int) -> dict[str, float]:
    """Measure files to tokens by orjson and gigatoken, without packing, batches or any bookkeeping."""
    import gigatoken
    import orjson

    record = json.loads(Path(tokenizer).read_text(encoding="utf-8"))
    record["added_tokens"] = [token for token in record["added_tokens"] if not token["special"]]
    core = gigatoken.Tokenizer.from_json(json.dumps(record | {"post_processor": None}))
    core.encode_batch([FIRST_TEXT]).layout  # noqa: B018 - imports what it needs

    def read(path: Path) -> int:
        tokens = 0
        with path.open("rb") as lines:
            for group in _groups(orjson.loads(line)["text"] for line in lines):
                layout = core.encode_batch(group).layout
                tokens += len(np.asarray(layout.content.data)) + len(group)
        return tokens

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        tokens = sum(pool.map(read, sorted(Path(folder).iterdir())))
    return {"tokens": tokens, "seconds": time.perf_counter() - began}


def optimize_litdata(cache: str, target: str) -> dict[str, Any]:
    """Write the full rows of a cache as litData's chunks; return how often each id occurs in them."""
    from litdata import TokensLoader, optimize

    from benchmarks.data.work import batches_of, cached, open_cache

    batches = batches_of(cached(open_cache(cache), 1))
    rows = np.concatenate([batch.input_ids[batch.row_lengths == LENGTH] for batch in batches]).astype(np.uint16)
    file = Path(target).with_suffix(".npy")
    np.save(file, rows)
    optimize(
        _rows_of,
        inputs=[str(file)],
        output_dir=target,
        chunk_bytes=_CHUNK_BYTES,
        item_loader=TokensLoader(block_size=LENGTH),
        num_workers=1,
        verbose=False,
    )
    return {"counts": np.bincount(rows.reshape(-1), minlength=1 << 16).tolist()}


def read_litdata(target: str, workers: int, passes: int) -> dict[str, Any]:
    """Measure ``passes`` of litData, shuffled, behind one that is counted instead."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    dataset = StreamingDataset(target, item_loader=TokensLoader(block_size=LENGTH), shuffle=True, drop_last=False)
    loader = StreamingDataLoader(dataset, batch_size=ROWS, num_workers=workers)
    counts = np.zeros(1 << 16, np.int64)
    for batch in loader:
        counts += np.bincount(batch.numpy().reshape(-1), minlength=len(counts))
    began = time.perf_counter()
    tokens = sum(batch.numel() for _ in range(passes) for batch in loader)
    return {"tokens": tokens, "seconds": time.perf_counter() - began, "counts": counts.tolist()}


def _tokenized(folder: str, tokenizer: str) -> Any:
    from datasets import disable_progress_bars, load_dataset
    from transformers import PreTrainedTokenizerFast

    disable_progress_bars()
    files = sorted(str(path) for path in Path(folder).iterdir())
    fast = PreTrainedTokenizerFast(tokenizer_file=tokenizer, eos_token="<|endoftext|>", split_special_tokens=True)  # noqa: S106
    texts = load_dataset("json", data_files=files, split="train", streaming=True)
    return texts.map(_tokenizing(fast), batched=True, batch_size=_MAPPED_TOGETHER, remove_columns=["text"])


def _tokenizing(fast: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def tokenize(batch: Mapping[str, Any]) -> Mapping[str, Any]:
        ids = fast(batch["text"], add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*each, fast.eos_token_id] for each in ids]}

    return tokenize


def _grouped(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    flat = list(chain.from_iterable(batch["input_ids"]))
    whole = len(flat) // LENGTH * LENGTH
    return {"input_ids": [flat[begin : begin + LENGTH] for begin in range(0, whole, LENGTH)]}


def _rows_of(path: str) -> Iterator[Any]:
    import torch

    yield from torch.from_numpy(np.load(path))


def _groups(texts: Iterator[str]) -> Iterator[Sequence[str]]:
    group: list[str] = []
    characters = 0
    for text in texts:
        group.append(text)
        characters += len(text)
        if characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group
