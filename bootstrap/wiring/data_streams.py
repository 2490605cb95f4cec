"""Builds the streams of batches from the data of a run."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.lane_reader import MOST_EXPECTING, ROW_ORDER, STRIPED, LanePlan
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.row_packer import JoinedRows, PackedRows
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.striped_batches import StripedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.wiring.disk_space import cache_room
from holdfast.bootstrap.wiring.score_ranges import documents_with, key_of, refuse_scores_of_streams
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.domain.counting import counted
from holdfast.domain.data.data_growth import Growth
from holdfast.domain.data.exclusion import NO_EXCLUSION
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking, packing_key
from holdfast.domain.data.profile import ProfileBuilder
from holdfast.domain.data.sample_order import choose_lanes
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.home_folder import expanded
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.conversation_record import completion_from, conversation_from, plain_text
from holdfast.domain.training.preference_record import preference_from
from holdfast.ports.process_group import KeyValueStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.pretokenize import Prepared
    from holdfast.application.data.read_statistics import Profiling
    from holdfast.application.data.record_pipeline import RecordPipeline
    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.application.data.text_reader import Limit
    from holdfast.bootstrap.wiring.dataset_registry import Datasets
    from holdfast.bootstrap.wiring.open_lineage import Lineage
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.run import RunSettings
    from holdfast.configs.sections.sources import ScoreRange
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.sample_order import RankShard
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource, Document
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import TokenSource

TOKENS_PER_BYTE = 0.4  # of text in the languages that tokenizers know least
_BYTES_PER_TOKEN = 24  # that a streamed token takes on its way: as ids, in two windows, and as text before
MIXTURE_BLOCK = 1024
UNGROWN = Growth()


def form_of(data: FeedSettings) -> str:
    """Return the form of the documents, ``text`` or ``tokens``."""
    return "tokens" if data.kind == "tokens" else "text"


def holds_pairs(data: FeedSettings) -> bool:
    """Return whether the documents are preferences, each a pair of conversations."""
    return data.task == "preference"


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


def usable_text(holdout: Holdout, pipeline: RecordPipeline, task: str = "text") -> Callable[[Document], str | None]:
    """Return a function from a document to the text that a tokenizer may be trained on, None for no text."""

    def usable(document: Document) -> str | None:
        # the reader that reads the document for training decides what a failed transform does to the run
        text = None if holdout.holds_text(document.text) else pipeline.text_of(document)
        return text if text is None or task == "text" else _words_of(text, task)

    return usable


def _words_of(text: str, task: str) -> str | None:
    """Return what is said in a record of a ``task``, without its names of fields; None if it cannot be used."""
    try:
        if task == "completion":
            return "".join(completion_from(text))
        return plain_text(preference_from(text).chosen if task == "preference" else conversation_from(text))
    except DataError:
        return None


def usable_key(holdout: Holdout, pipeline: RecordPipeline, task: str = "text") -> str:
    """Return the key that identifies the result of ``usable_text``."""
    documents = repr(holdout) if holdout.chosen is None else holdout.key
    return json.dumps([documents, *pipeline.fingerprints, *([] if task == "text" else [task, 1])])


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


def choose_mode(
    source: DataSource, data: FeedSettings, folder: Path, keep_choice: Callable[[str, str, str], str]
) -> str:
    """Return ``cache`` or ``stream``; the first choice for ``auto`` is kept, as the order of the data depends on it."""
    if form_of(data) == "tokens":
        return "cache"
    if holds_pairs(data):  # the reference log-probabilities are kept beside cached tokens
        return "cache"
    if data.mode != "auto":
        return data.mode
    parts = [(part, [unit.size for unit in part.units()]) for part in parts_of(source)]
    needed = int(sum(sum(sizes) for _, sizes in parts) * TOKENS_PER_BYTE * 4)
    room = cache_budget(data, folder)
    if any(not all(sizes) and part.files() is None for part, sizes in parts):  # a file may be empty
        return keep_choice("data.mode", "stream", "the size of the source is unknown")
    if needed > room:
        return keep_choice("data.mode", "stream", f"about {needed:,} bytes of tokens do not fit into {room:,}")
    return keep_choice("data.mode", "cache", f"about {needed:,} bytes of tokens fit into {room:,}")


def cache_folder(data: FeedSettings, run: RunSettings) -> Path:
    """Return the folder of the token cache; encrypted and plain tokens have different folders."""
    if data.cache.dir is not None:
        return expanded(data.cache.dir)
    return run.cache_directory / ("tokens" if data.cache.encryption is None else "encrypted-tokens")


def cache_budget(data: FeedSettings, folder: Path) -> int:
    """Return the largest size of the cache in bytes."""
    return data.cache.budget or cache_room(folder)


def parts_of(source: DataSource) -> Sequence[DataSource]:
    """Return the sources of a mixture, or the one source."""
    return tuple(getattr(source, "parts", {"": source}).values())


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


def prepare(
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


def mixture_of(data: FeedSettings, seed: int, rules: Mapping[str, int]) -> Mixture:
    """Return the mixture, which chooses the source of each sample, by the settings.

    Stages begin at rows; by the first of the ``rules`` for them they begin at blocks of rows.
    """
    if not isinstance(data, MixtureDataSettings):
        return Mixture(seed, (Stage(0, (1,)),))
    rows = MIXTURE_BLOCK if rules["mixture_stages"] == 1 else 1
    stages = [Stage(0, _whole_weights([source.weight for source in data.giving.values()]))]
    for stage in data.stages:
        start = -(-stage.after_tokens // (data.row_length * rows)) * rows
        stages.append(Stage(start, _whole_weights([stage.weights.get(name, 0) for name in data.giving])))
    return Mixture(seed, tuple(stages), MIXTURE_BLOCK, tuple(data.giving))


def _whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole numbers in the exact ratios of ``weights`` as they are written; whole numbers stay as they are."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    return tuple(int(weight * scale) for weight in exact)


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


def first_readers(readers: Sequence[TextReader], parts: Sequence[TextReader]) -> Sequence[TextReader]:
    """Return as many of ``readers`` as there are ``parts``; the others read what was added after the run began."""
    return readers[: len(parts)]


def show_duplicates(show: ShowPhase, done: int, total: int) -> None:
    """Show that the search for duplicates has read ``done`` of ``total`` bytes."""
    show(f"finding duplicates in {shown_size(total)}", Amount(done, total))


def _show_tokenizing(show: ShowPhase, done: int, total: int) -> None:
    show(f"tokenizing {shown_size(total)}", Amount(done, total))
