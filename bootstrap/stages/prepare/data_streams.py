"""Builds the streams of batches from the data of a run."""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.shared.token_store.duplicate_files import DuplicateFiles
from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.deduplicate import Duplicates
from holdfast.application.data.document_keys import ExactKeys, FieldKeys, MinHashKeys
from holdfast.application.data.lane_reader import MOST_EXPECTING, ROW_ORDER, STRIPED, LanePlan
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.row_packer import JoinedRows, PackedRows
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.striped_batches import StripedBatches
from holdfast.application.data.text_reader import LeftOutByAny, TextReader
from holdfast.bootstrap.adapter_choice.plugins import has_methods, load_plugin, make_plugin
from holdfast.bootstrap.stages.identify.data_form import UNGROWN, parts_of
from holdfast.bootstrap.stages.identify.score_ranges import (
    distinct_readers,
    documents_with,
    key_of,
    refuse_scores_of_streams,
)
from holdfast.domain.data.cache_eviction import FarthestNextUse, LeastRecentlyUsed, OwnLast
from holdfast.domain.data.exclusion import NO_EXCLUSION
from holdfast.domain.data.near_duplicates import choose_bands
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking, packing_key
from holdfast.domain.data.profile import ProfileBuilder
from holdfast.domain.data.sample_order import choose_lanes
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.sizes import counted, shown_size
from holdfast.ports.process_group import KeyValueStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
    from holdfast.application.data.deduplicate import SourceDuplicates
    from holdfast.application.data.document_keys import DocumentKeys
    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.pretokenize import Prepared
    from holdfast.application.data.record_pipeline import RecordPipeline
    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.data.rejected_records import Profiling, RejectedRecords
    from holdfast.application.data.text_reader import LeftOut, Limit
    from holdfast.bootstrap.stages.prepare.dataset_registry import Datasets
    from holdfast.bootstrap.stages.prepare.lineage import Lineage
    from holdfast.configs.sections.data import CacheSettings, DedupSettings, FeedSettings
    from holdfast.configs.sections.sources import ScoreRange
    from holdfast.domain.data.cache_eviction import CachedShard, EvictionPolicy
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.mixture import Mixture
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.sample_order import Growth, RankShard
    from holdfast.domain.data.work_part import WorkPart
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import TokenSource

_BYTES_PER_TOKEN = 24  # that a streamed token takes on its way: as ids, in two windows, and as text before


def trained_stream(stream: BatchStream, reference: ReferenceColumn | None) -> BatchStream:
    """Return ``stream``, with the log-probabilities of the reference model if they are known.

    Raises ``ConfigurationError`` if they are for another stream than that of the token cache.
    """
    if reference is None:
        return stream
    if not isinstance(stream, CachedBatches):
        msg = "data.task=preference reads the token cache, but batch_stream was replaced: wrap trained_stream instead"
        raise ConfigurationError(msg)
    return stream.with_reference(reference)


def pack_rows(stream: CachedBatches, show: ShowPhase) -> int:
    """Pack the documents of cached tokens into rows, unless they were before; return the number of rows."""
    for part in (part for source in stream.sources for part in source.parts()):
        part.progress = lambda done, total: show("packing documents into rows", Amount(done, total, "shards"))
    return stream.num_rows


def prefetch_depth(data: FeedSettings, batch_size: int) -> int:
    """Return the number of batches of ``batch_size`` rows that are prepared ahead, by the settings."""
    return data.prefetch if data.prefetch_samples is None else -(-data.prefetch_samples // batch_size)


def choose_packing(data: FeedSettings) -> Packing:
    """Return how documents become rows, by the settings."""
    match data.packing.kind:
        case "concat":
            return ConcatPacking(data.row_length, data.packing.overflow)
        case "best_fit":
            return BestFitPacking(data.row_length, data.packing.overflow)
        case "sliding":
            return SlidingPacking(data.row_length, data.packing.stride or data.row_length // 2)


def read_parts(
    source: DataSource,
    mixture: Mixture,
    encoder: DocumentEncoder,
    rejections: RejectedRecords,
    pipeline: RecordPipeline,
    limit: Limit | None = None,
    profile: Profiling | None = None,
) -> list[TextReader]:
    """Return a reader of each part of a mixture, by name, or of the one source.

    Raises ``ConfigurationError`` if the number of parts is not that of the sources with a weight.
    """
    parts = parts_of(source)
    if len(parts) != mixture.num_sources:  # a host may bring its own
        msg = f"there are {len(parts)} sources, but {mixture.num_sources} with a weight above 0: give each one"
        raise ConfigurationError(msg)
    return [TextReader(part, encoder, rejections, pipeline, limit=limit, profile=profile) for part in parts]


def with_added(
    readers: Sequence[TextReader],
    added: Sequence[DataSource],
    encoder: DocumentEncoder,
    rejections: RejectedRecords,
    pipeline: RecordPipeline,
    limit: Limit | None = None,
) -> list[TextReader]:
    """Return ``readers``, followed by one reader for each part of the data that was added after the run began."""
    return [*readers, *(TextReader(part, encoder, rejections, pipeline, limit=limit) for part in added)]


def prepare_tokens(
    readers: Sequence[TextReader],
    make_cache: Callable[[str], TokenCache],
    rejections: RejectedRecords,
    datasets: Datasets,
    lineage: Lineage,
    *,
    workers: int | None,
    report: Callable[[str], object],
    show: ShowPhase = show_nothing,
) -> list[TokenCache]:
    """Return the tokens of each source, whose versions ``lineage`` records; missing tokens are made first."""
    with lineage.preparing(readers):
        caches, preparations = [], []
        for reader in readers:
            cache = make_cache(datasets.name_of(reader))
            preparation = PrepareTokens(
                reader,
                cache,
                rejections,
                progress=partial(_show_tokenizing, show),
                workers=workers or usable_cpus(),
                new_profile=ProfileBuilder,
            )
            _report_prepared(preparation.run(), report)
            if preparation.warnings:
                report(warnings_line(preparation.warnings))
            caches.append(cache)
            preparations.append(preparation)
        for reader, preparation in zip(readers, preparations, strict=True):
            preparation.check()  # what came later may have driven out what was there
            datasets.keep(reader)
            reader.tell_lacking_fields()
        lineage.versions.keep(readers, caches, datasets)
    return caches


def _report_prepared(prepared: Prepared, report: Callable[[str], object]) -> None:
    if prepared.new_tokens:
        rate = prepared.new_tokens / max(prepared.seconds, 1e-3)
        notes = [f"{counted(prepared.rejected, 'record')} rejected"] if prepared.rejected else []
        if prepared.supervised_tokens is not None:
            notes.append(f"{prepared.supervised_tokens / max(1, prepared.tokens):.1%} of the tokens are trained on")
        report(
            f"prepared {counted(prepared.tokens, 'token')} of {counted(prepared.documents, 'document')} "
            + "; ".join([f"in {prepared.seconds:.1f} s, {rate:,.0f} tokens/s", *notes])
        )


def warnings_line(warnings: Mapping[str, int]) -> str:
    """Return a line for a person about records that are used in spite of a warning, by reason."""
    reasons = "; ".join(f"{reason} ({counted(count, 'record')})" for reason, count in warnings.items())
    return f"used with a warning: {reasons}"


def cached_batches(
    tokens: Sequence[TokenSource],
    mixture: Mixture,
    packing: Packing,
    holdout: Holdout,
    share: RankShard,
    epochs: int | None,
    growth: Growth = UNGROWN,
    excluded: Exclusion = NO_EXCLUSION,
    *,
    ranges: Sequence[ScoreRange | None] = (),
    holds_pairs: bool = False,
) -> BatchStream:
    """Return batches of the documents of token sources that are neither held out nor ``excluded``.

    ``ranges`` are those of the scores of each source. Added documents come last. With ``holds_pairs`` the documents are
    preferences.
    """
    key = f"{packing_key(packing)} without {holdout.key}"
    rows = [
        PackedRows(
            source,
            packing,
            lambda hashes: ~holdout.holds(hashes),
            key + key_of(score),
            excluded=excluded,
            chosen=documents_with(source, score),
            holds_pairs=holds_pairs,
        )
        for source, score in zip_longest(tokens, ranges)
    ]
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
    excluded: Exclusion = NO_EXCLUSION,
    *,
    data: FeedSettings,
    row_order: int = ROW_ORDER,
    group: ProcessGroup | None = None,
) -> BatchStream:
    """Return batches of sources' documents that are neither held out nor ``excluded``, read as they are needed.

    ``row_order`` is the version of the order of rows; ``group`` joins the ranks.
    """
    refuse_scores_of_streams(data)
    lanes = choose_lanes(min(len(reader.source.units()) for reader in readers))
    shuffled = min(data.shuffle_tokens, data.stream_buffer_bytes // _BYTES_PER_TOKEN)  # however many lanes share them
    overlap = packing.length // packing.stride if isinstance(packing, SlidingPacking) else 1  # rows repeat tokens
    window = max(packing.length, shuffled // (lanes * len(readers) * max(1, overlap)))
    plan = LanePlan(lanes, packing, window, mixture.seed, data.epochs, excluded, row_order)
    wanted = (lambda hashes: ~holdout.holds(hashes)) if holdout.fraction else None
    is_remote = any("://" in unit.name for reader in readers for unit in reader.source.units()[:1])
    # reads from a network need more threads than cores, but where data are read ahead, threads hinder each other
    waits = is_remote and not (lanes <= MOST_EXPECTING and all(reader.source.fetches_ahead for reader in readers))
    workers = data.workers or max(4 if waits else 1, usable_cpus())
    if row_order == STRIPED:
        return StripedBatches(readers, mixture, plan, wanted, share, workers=workers)
    texts = group if isinstance(group, KeyValueStore) else None  # without it ranks read more
    return StreamedBatches(readers, mixture, plan, wanted, share, workers=workers, group=texts)


def show_duplicates(show: ShowPhase, done: int, total: int) -> None:
    """Show that the search for duplicates has read ``done`` of ``total`` bytes."""
    show(f"finding duplicates in {shown_size(total)}", Amount(done, total))


def _show_tokenizing(show: ShowPhase, done: int, total: int) -> None:
    show(f"tokenizing {shown_size(total)}", Amount(done, total))


def leave_out_duplicates(
    readers: Sequence[TextReader],
    data: FeedSettings,
    mode: str,
    folder: Path,
    encryption: ShardEncryption | None,
    *,
    progress: Callable[[int, int], object],
    part: WorkPart = WHOLE,
) -> Sequence[TextReader]:
    """Return readers that leave out records with repeated values of unique fields, and duplicates of texts.

    ``mode`` is ``cache`` or ``stream``, ``folder`` and ``encryption`` are those of the token cache. Nothing is read
    until the result is used; then this process computes the keys of its ``part`` of the units. Raises
    ``ConfigurationError`` if the data cannot be deduplicated.
    """
    check_dedup(data, mode)
    distinct = distinct_readers(readers)
    if len(distinct) < len(readers):  # several ranges of the scores of one source
        prints = [reader.fingerprints for reader in distinct]
        left = leave_out_duplicates(distinct, data, mode, folder, encryption, progress=progress, part=part)
        return [left[prints.index(reader.fingerprints)] for reader in readers]
    store, workers = DuplicateFiles(folder, encryption), data.workers or usable_cpus()

    def search(among: Sequence[TextReader], keys: DocumentKeys) -> list[SourceDuplicates]:
        return Duplicates(among, keys, store, progress=progress, workers=workers, part=part).left_out()

    unique = () if data.validation is None else data.validation.unique_fields
    found: list[list[LeftOut]] = [[] for _ in readers]
    for keys in map(FieldKeys, unique):
        for own, left_out in zip(found, search(_without(readers, found), keys), strict=True):
            own.append(left_out)
    if data.dedup is not None:
        among = _without(readers, found)
        together = [among] if data.dedup.scope == "all" else [[reader] for reader in among]
        duplicates = [left_out for each in together for left_out in search(each, _keys(data.dedup))]
        for own, left_out in zip(found, duplicates, strict=True):
            own.append(left_out)
    return _without(readers, found)


def _without(readers: Sequence[TextReader], found: Sequence[Sequence[LeftOut]]) -> Sequence[TextReader]:
    return [
        reader.leaving_out(LeftOutByAny([*own])) if own else reader for reader, own in zip(readers, found, strict=True)
    ]


def check_dedup(data: FeedSettings, mode: str) -> None:
    """Raise ``ConfigurationError`` if documents are to be compared that are streamed, or are tokens already."""
    is_unique = data.validation is not None and bool(data.validation.unique_fields)
    if is_unique and mode == "stream":
        msg = (
            "data.validation asks for unique values, which needs all records before training, but the data are read "
            "as a stream: set data.mode=cache, or leave unique out"
        )
        raise ConfigurationError(msg)
    if data.dedup is None:
        return
    if data.kind == "tokens":
        msg = "data.dedup compares texts, and data.kind=tokens has no text: leave data.dedup out"
        raise ConfigurationError(msg)
    if mode == "stream":
        msg = (
            "data.dedup compares all documents before training, but the data are read as a stream: set "
            "data.mode=cache, or leave data.dedup out"
        )
        raise ConfigurationError(msg)


def _keys(dedup: DedupSettings) -> DocumentKeys:
    if dedup.kind == "exact":
        return ExactKeys(normalize=dedup.normalize)
    try:
        from holdfast.adapters.shared.minhash import MinHashSignatures
    except ModuleNotFoundError as error:
        msg = 'data.dedup.kind=minhash needs another package: pip install "holdfast-lm[dedup]"'
        raise ConfigurationError(msg) from error
    return MinHashKeys(
        MinHashSignatures(dedup.permutations, dedup.seed),
        ngram=dedup.ngram,
        bands=dedup.bands or choose_bands(dedup.threshold, dedup.permutations),
        threshold=dedup.threshold,
        normalize=dedup.normalize,
    )


EVICTIONS = ("next_use", "lru")


def first_uses(readers: Sequence[TextReader], mixture: Mixture, datasets: Datasets) -> dict[str, int]:
    """Return, by the fingerprint of each dataset that ``readers`` need, the first sample of the run that needs it.

    Data that were added to a single source, whose readers follow those of ``mixture``, count from the first sample.
    """
    uses: dict[str, int] = {}
    for number, reader in enumerate(readers):
        is_added = number >= mixture.num_sources
        first = 0 if is_added else next(stage.start for stage in mixture.stages if stage.weights[number])
        key = datasets.name_of(reader)
        uses[key] = min(first, uses.get(key, first))  # two sources may be the same documents
    return uses


def load_eviction(cache: CacheSettings, uses: Mapping[str, int]) -> EvictionPolicy:
    """Return the policy in the settings; the datasets in ``uses`` are evicted last under any policy.

    Raises ``ConfigurationError`` if the policy cannot be loaded.
    """

    def next_use(shard: CachedShard) -> int | None:
        return uses.get(shard.fingerprint)

    makers: Sequence[Callable[[], EvictionPolicy]] = (lambda: FarthestNextUse(next_use), LeastRecentlyUsed)
    built_in = dict(zip(EVICTIONS, makers, strict=True))
    kind = cache.eviction
    new = built_in[kind] if kind in built_in else load_plugin("eviction", kind, built_in=built_in)
    policy: EvictionPolicy = make_plugin(
        "eviction",
        kind,
        new,
        cache.eviction_options or {},
        is_one=lambda made: has_methods(made, "first_to_go"),
        otherwise=" without first_to_go",
    )
    return OwnLast(uses.keys(), policy)
