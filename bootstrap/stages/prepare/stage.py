"""Prepares what a run trains on: readers of its sources, tokens, rows and the stream of batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.adapter_choice.encryption_keys import build_shard_encryption
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.stages.identify.data_form import cache_budget, open_shards
from holdfast.bootstrap.stages.identify.score_ranges import score_ranges
from holdfast.bootstrap.stages.prepare.data_streams import (
    cached_batches,
    choose_packing,
    first_uses,
    leave_out_duplicates,
    load_eviction,
    prepare_tokens,
    read_parts,
    show_duplicates,
    streamed_batches,
    with_added,
)
from holdfast.bootstrap.stages.prepare.dataset_registry import datasets_in
from holdfast.bootstrap.stages.prepare.lineage import Lineage
from holdfast.domain.data.work_part import WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.application.data.drift_monitor import DriftMonitor
    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.stages.identify.data import Data
    from holdfast.bootstrap.stages.prepare.dataset_registry import Datasets
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.sample_order import RankShard
    from holdfast.domain.data.work_part import WorkPart
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import TokenSource


@final
@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of the sources of ``data``, without duplicates: ``first`` of what the run began with, then the rest.

    ``datasets`` and ``lineage`` name and record the versions of what they read.
    """

    data: Data
    all: Sequence[TextReader]
    first: Sequence[TextReader]
    datasets: Datasets
    lineage: Lineage

    def cache(self, name: str) -> TokenCache:
        """Return the token cache of the dataset called ``name``."""
        found, section = self.data.found, self.data.found.settings.data
        folder = found.cache_folder
        made: TokenCache = lazy("holdfast.adapters.token_cache.disk:DiskTokenCache")(
            folder,
            name,
            budget=cache_budget(section, folder),
            eviction=load_eviction(section.cache, first_uses(self.all, found.mixture, self.datasets)),
            max_open=open_shards(section),
            encryption=build_shard_encryption(section.cache.encryption),
        )
        return made

    def tokens(self) -> Sequence[TokenSource]:
        """Return the tokens of each source; missing ones are made first."""
        if self.data.run.token_files is not None:
            return [self.data.run.token_files]
        found = self.data.found
        return prepare_tokens(
            self.all,
            self.cache,
            found.records.rejections,
            self.datasets,
            self.lineage,
            workers=found.settings.data.workers,
            report=found.report,
            show=found.show,
        )


@final
@dataclass(frozen=True, slots=True)
class PreparedRows:
    """The ``stream`` of batches of ``readers``, packed by ``packing``; ``tokens`` are those of cached ones."""

    readers: Readers
    packing: Packing
    tokens: Sequence[TokenSource]
    stream: BatchStream

    @property
    def data(self) -> Data:
        """Return the data that are read."""
        return self.readers.data


def open_readers(data: Data, *, part: WorkPart = WHOLE, drift: DriftMonitor | None = None) -> Readers:
    """Return the readers of ``data``; the search for duplicates leaves the other parts of the work to others.

    ``drift`` watches what is streamed.
    """
    found = data.found
    section, show = found.settings.data, found.show
    encoding = (data.encoder, found.records.rejections, data.pipeline, found.records.limit)
    first = read_parts(data.run.source, found.mixture, *encoding, drift if found.mode == "stream" else None)
    everything = leave_out_duplicates(
        with_added(first, data.run.added, *encoding),
        section,
        found.mode,
        found.cache_folder,
        build_shard_encryption(section.cache.encryption),
        progress=partial(show_duplicates, show),
        part=part,
    )
    lineage = Lineage(found.settings, found.request.directory, found.cache_folder, found.report)
    datasets = datasets_in(found.cache_folder, section.cache, show)
    return Readers(data, everything, everything[: len(first)], datasets, lineage)


def prepare(readers: Readers, share: RankShard, group: ProcessGroup | None = None) -> PreparedRows:
    """Return the rows of ``readers`` for the ``share`` of a rank; ``group`` joins the ranks that read a stream."""
    data, found = readers.data, readers.data.found
    section, packing = found.settings.data, choose_packing(found.settings.data)
    order = (found.mixture, packing, data.holdout, share)
    if found.mode == "stream":
        row_order = found.request.begun.rules["row_order"]
        stream = streamed_batches(readers.first, *order, found.excluded, data=section, row_order=row_order, group=group)
        return PreparedRows(readers, packing, (), stream)
    tokens = readers.tokens()
    stream = cached_batches(
        tokens,
        *order,
        section.epochs,
        data.run.growth,
        found.excluded,
        ranges=score_ranges(section),
        holds_pairs=section.holds_pairs,
    )
    return PreparedRows(readers, packing, tokens, stream)
