"""Builds the streams of batches from the data of a run."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.choose_holdout import choose_holdout
from holdfast.application.data.lane_reader import MOST_EXPECTING, LanePlan
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.row_packer import JoinedRows, PackedRows
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.wiring.disk_space import cache_room
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.domain.counting import counted
from holdfast.domain.data.data_growth import Growth
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking, packing_key
from holdfast.domain.data.sample_order import choose_lanes
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.bootstrap.wiring.dataset_registry import Datasets
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.run import RunSettings
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.sample_order import RankShard
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import TokenSource
    from holdfast.ports.tokenizer import Tokenizer
    from holdfast.ports.transform import Transform

_TOKENS_PER_BYTE = 0.4  # of text in the languages that tokenizers know least
_BYTES_PER_TOKEN = 24  # that a streamed token takes on its way: as ids, in two windows, and as text before
MIXTURE_BLOCK = 1024
UNGROWN = Growth()


def form_of(data: FeedSettings) -> str:
    """Return whether documents come as ``text`` or as ``tokens``."""
    return "tokens" if data.kind == "tokens" else "text"


def hold_out(source: DataSource, data: FeedSettings, seed: int, say: Callable[[str], object]) -> Holdout:
    """Return the documents to hold out, by the settings."""
    if data.folds is not None:
        return Holdout.fold(data.fold, data.folds, seed)
    if form_of(data) == "tokens":
        return Holdout(data.holdout, seed)
    return choose_holdout(source, Holdout(data.holdout, seed), say)


def usable_text(holdout: Holdout, transforms: Sequence[Transform]) -> Callable[[str], str | None]:
    """Return what gives a document's text as a tokenizer may be trained on it, None for none."""

    def usable(text: str) -> str | None:
        if holdout.holds_text(text):
            return None
        for transform in transforms:
            try:
                text = transform(text) or ""
            except Exception:  # noqa: BLE001  whoever reads the document for training decides what becomes of the run
                return None
        return text

    return usable


def usable_key(holdout: Holdout, transforms: Sequence[Transform]) -> str:
    """Return what names ``usable_text``."""
    return json.dumps([repr(holdout), *(transform.fingerprint() for transform in transforms)])


def choose_packing(data: FeedSettings) -> Packing:
    """Return how documents become rows, by the settings."""
    match data.packing.kind:
        case "concat":
            return ConcatPacking(data.row_length, data.packing.overflow)
        case "best_fit":
            return BestFitPacking(data.row_length, data.packing.overflow)
        case "sliding":
            return SlidingPacking(data.row_length, data.packing.stride or data.row_length // 2)


def choose_mode(source: DataSource, data: FeedSettings, folder: Path, decide: Callable[[str, str, str], str]) -> str:
    """Return ``cache`` or ``stream``; what ``auto`` was once decided to be stays, as the order depends on it."""
    if form_of(data) == "tokens":
        return "cache"
    if data.mode != "auto":
        return data.mode
    sizes = [unit.size for unit in source.units()]
    needed = int(sum(sizes) * _TOKENS_PER_BYTE * 4)
    room = cache_budget(data, folder)
    if not all(sizes):
        return decide("data.mode", "stream", "the source does not tell its size")
    if needed > room:
        return decide("data.mode", "stream", f"about {needed:,} bytes of tokens do not fit into {room:,}")
    return decide("data.mode", "cache", f"about {needed:,} bytes of tokens fit into {room:,}")


def cache_folder(data: FeedSettings, run: RunSettings) -> Path:
    """Return where tokens are kept: encrypted ones and others never lie in one folder."""
    if data.cache.dir is not None:
        return data.cache.dir.expanduser()
    return run.cache_directory / ("tokens" if data.cache.encryption is None else "encrypted-tokens")


def cache_budget(data: FeedSettings, folder: Path) -> int:
    """Return how many bytes the cache may take."""
    return data.cache.budget or cache_room(folder)


def read_parts(
    source: DataSource,
    mixture: Mixture,
    tokenizer: Tokenizer,
    rejections: RejectedRecords,
    transforms: Sequence[Transform],
) -> list[TextReader]:
    """Return a reader of each part of a mixture, by name, or of the one source."""
    parts = tuple(getattr(source, "parts", {"": source}).values())
    if len(parts) != mixture.num_sources:  # a host may bring its own
        msg = f"there are {len(parts)} sources, but {mixture.num_sources} with a weight above 0: give each one"
        raise ConfigurationError(msg)
    return [TextReader(part, tokenizer, rejections, transforms) for part in parts]


def with_added(
    readers: Sequence[TextReader],
    added: Sequence[DataSource],
    tokenizer: Tokenizer,
    rejections: RejectedRecords,
    transforms: Sequence[Transform],
) -> list[TextReader]:
    """Return ``readers``, and after them one of each part of the data that was added after the run began."""
    return [*readers, *(TextReader(part, tokenizer, rejections, transforms) for part in added)]


def prepare(
    readers: Sequence[TextReader],
    make_cache: Callable[[str], TokenCache],
    rejections: RejectedRecords,
    datasets: Datasets,
    *,
    workers: int | None,
    say: Callable[[str], object],
    show: ShowPhase = show_nothing,
) -> list[TokenCache]:
    """Return the tokens of each source, tokenizing what is missing."""
    caches, preparations = [], []
    for reader in readers:
        cache = make_cache(datasets.name_of(reader))
        preparation = PrepareTokens(
            reader, cache, rejections, progress=partial(_show_tokenizing, show), workers=workers or usable_cpus()
        )
        prepared = preparation.run()
        if prepared.new_tokens:
            rate = prepared.new_tokens / max(prepared.seconds, 1e-3)
            rejected = f"; {counted(prepared.rejected, 'record')} rejected" if prepared.rejected else ""
            say(
                f"prepared {counted(prepared.tokens, 'token')} of {counted(prepared.documents, 'document')} "
                f"in {prepared.seconds:.1f} s, {rate:,.0f} tokens/s" + rejected
            )
        caches.append(cache)
        preparations.append(preparation)
    for reader, preparation in zip(readers, preparations, strict=True):
        preparation.check()  # what came later may have driven out what was there
        datasets.keep(reader)
    return caches


def mixture_of(data: FeedSettings, seed: int) -> Mixture:
    """Return which source each sample comes from, by the settings."""
    if not isinstance(data, MixtureDataSettings):
        return Mixture(seed, (Stage(0, (1,)),))
    stages = [Stage(0, tuple(source.weight for source in data.giving.values()))]
    for stage in data.stages:
        start = -(-stage.after_tokens // (data.row_length * MIXTURE_BLOCK)) * MIXTURE_BLOCK
        stages.append(Stage(start, tuple(stage.weights.get(name, 0) for name in data.giving)))
    return Mixture(seed, tuple(stages), MIXTURE_BLOCK, tuple(data.giving))


def cached_batches(
    tokens: Sequence[TokenSource],
    mixture: Mixture,
    packing: Packing,
    holdout: Holdout,
    share: RankShard,
    epochs: int | None,
    growth: Growth = UNGROWN,
) -> BatchStream:
    """Return batches of the documents of token sources that are not held out, those that were added last."""
    key = f"{packing_key(packing)} without {holdout.begin!r} {holdout.end!r} {holdout.seed}"
    rows = [PackedRows(source, packing, lambda hashes: ~holdout.holds(hashes), key) for source in tokens]
    if not growth.epochs:
        return CachedBatches(rows, mixture, share, length=packing.length, epochs=epochs)
    grown = growth.resolve([part.num_rows for part in rows], mixture)
    return CachedBatches([JoinedRows(rows)], mixture, share, length=packing.length, epochs=epochs, grown=grown)


def streamed_batches(
    readers: Sequence[TextReader],
    mixture: Mixture,
    packing: Packing,
    holdout: Holdout,
    share: RankShard,
    *,
    data: FeedSettings,
) -> BatchStream:
    """Return batches of sources' documents that are not held out, read as they are needed."""
    lanes = choose_lanes(min(len(reader.source.units()) for reader in readers))
    shuffled = min(data.shuffle_tokens, data.stream_buffer_bytes // _BYTES_PER_TOKEN)  # however many lanes share them
    overlap = packing.length // packing.stride if isinstance(packing, SlidingPacking) else 1  # rows repeat tokens
    window = max(packing.length, shuffled // (lanes * len(readers) * max(1, overlap)))
    plan = LanePlan(lanes, packing, window, mixture.seed, data.epochs)
    wanted = (lambda hashes: ~holdout.holds(hashes)) if holdout.fraction else None
    is_remote = any("://" in unit.name for reader in readers for unit in reader.source.units()[:1])
    # who waits for a network needs more threads than cores, but where that is read ahead they hinder each other
    waits = is_remote and not (lanes <= MOST_EXPECTING and all(reader.source.fetches_ahead for reader in readers))
    return StreamedBatches(
        readers, mixture, plan, wanted, share, workers=data.workers or max(4 if waits else 1, usable_cpus())
    )


def _show_tokenizing(show: ShowPhase, done: int, total: int) -> None:
    show(f"tokenizing {total / 1e6:,.0f} MB", done / max(total, 1))
