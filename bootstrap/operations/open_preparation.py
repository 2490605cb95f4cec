"""The parts that tokenize the data of a run before it trains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.application.data.pretokenize import Prepared, PrepareTokens
from holdfast.bootstrap.adapter_choice.data_sources import report_remarks
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.run_folder.folder import began_with
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import RULES, read_record, rules_of
from holdfast.bootstrap.stages.build.reference_model import add_reference
from holdfast.bootstrap.stages.build.stage import bare_model, wrap_model
from holdfast.bootstrap.stages.choose.former_settings import check_description, check_tokenizer, with_former_settings
from holdfast.bootstrap.stages.choose.stage import choose, choose_sizes
from holdfast.bootstrap.stages.identify.data_growth import divide_ahead, may_grow
from holdfast.bootstrap.stages.identify.data_identity import begun_with, known_data
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.open_run.hub_choice import refuse_offline
from holdfast.bootstrap.stages.open_run.record_files import rejections_of
from holdfast.bootstrap.stages.prepare.stage import open_readers
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.secret_masking import mask
from holdfast.domain.data.profile import ProfileBuilder
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.run_folder.record_file import Begun
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.bootstrap.stages.choose.stage import Chosen
    from holdfast.bootstrap.stages.identify.data import Found, RunData
    from holdfast.bootstrap.stages.prepare.dataset_registry import Datasets
    from holdfast.bootstrap.stages.prepare.lineage import Lineage
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.work_part import WorkPart
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.tokenizer import Tokenizer


@final
@dataclass(frozen=True, slots=True)
class OpenPreparation:
    """The ``readers`` of the sources of a run with their token ``caches``, in the ``folder`` of the cache.

    ``add_reference`` computes what is missing of the reference model's column, if the data are preferences, and reports
    that.
    """

    settings: TrainSettings
    folder: Path
    readers: Sequence[TextReader]
    caches: Sequence[TokenCache]
    rejections: RejectedRecords
    datasets: Datasets
    lineage: Lineage
    add_reference: Callable[[Sequence[TokenCache], ShowPhase], object]

    def search(self) -> None:
        """Find the documents to leave out; raises ``RestartNeeded`` if that has to wait for other parts."""
        for reader in self.readers:
            if reader.left_out is not None and (units := reader.source.units()):
                reader.left_out.mask(units[0], [])

    def make(
        self,
        part: WorkPart = WHOLE,
        progress: Callable[[int, int], object] = lambda _done, _total: None,
        *,
        workers: int | None = None,
    ) -> Prepared:
        """Make the shards of ``part`` that are missing; return what the caches hold of it.

        ``progress`` gets the bytes done and the total, from any thread; ``workers`` are threads. Raises ``DataError``,
        ``StateError`` and ``ConfigurationError`` as ``PrepareTokens`` does.
        """
        preparations = [
            PrepareTokens(
                reader,
                cache,
                self.rejections,
                progress=progress,
                workers=workers or self.settings.data.workers or usable_cpus(),
                new_profile=ProfileBuilder,
                part=part,
            )
            for reader, cache in zip(self.readers, self.caches, strict=True)
        ]
        prepared = [preparation.run() for preparation in preparations]
        for preparation in preparations:
            preparation.check()  # the cache may have evicted earlier tokens to make room for later ones
        return Prepared.total(prepared)

    def num_missing(self) -> tuple[int, int]:
        """Return the number of shards that are missing, and of all."""
        found = [
            PrepareTokens(reader, cache, self.rejections).missing()
            for reader, cache in zip(self.readers, self.caches, strict=True)
        ]
        return sum(missing for missing, _ in found), sum(total for _, total in found)

    def finish(self, show: ShowPhase) -> None:
        """Record the contents and the versions of the data, once all shards are there.

        Raises ``StateError`` if a run on preferences began with another reference model.
        """
        self.add_reference(self.caches, show)
        for reader in self.readers:
            self.datasets.keep(reader)
        self.lineage.versions.keep(self.readers, self.caches, self.datasets)


def begun_run(settings: TrainSettings) -> tuple[TrainSettings, Mapping[str, Any], Begun]:
    """Return ``settings`` as the run in their folder follows them, its record, and what it began with.

    That is its rules, the places of its files and what it holds out.

    The rules are the newest ones, and the record is empty, if none has begun there.
    """
    folder = settings.run.directory
    record = read_record(folder) if RunLayout(folder).record.exists() else {}
    begun = begun_with(record, rules_of(record) if record.get("facts") else RULES)
    return with_former_settings(settings, began_with(folder)), record, begun


def open_preparation(
    settings: TrainSettings,
    on_rejected: Callable[[Mapping[str, object]], object],
    report: Callable[[str], object],
    show: ShowPhase,
    part: WorkPart = WHOLE,
) -> OpenPreparation:
    """Return the parts that tokenize the data of ``settings``, or ``part`` of them.

    Raises ``ConfigurationError`` if the data are tokens already.
    """
    if settings.data.are_tokens:
        msg = "data.kind=tokens is prepared already: train on it as it is"
        raise ConfigurationError(msg)
    refuse_offline(settings)
    rejections = rejections_of(settings.data, lambda record: on_rejected(mask(dict(record))))
    settings, record, begun = begun_run(settings)
    ports = Ports(settings, {})
    request = choose_sizes(Request(settings, settings.run.directory, ports, report, show, begun=begun))
    settings = request.settings
    chosen, found = choose(request, SingleProcessGroup()), find_data(request, rejections)
    report_remarks(found.data.source, settings.data, report)
    show("preparing the tokenizer")
    check_description(chosen.model_factory, settings, is_new=not record)
    data = identify(found, _divided_as_in_the_run(record, found))
    check_tokenizer(data.tokenizer, chosen.model_factory, settings, is_new=not record)
    readers = open_readers(data, part=part)
    return OpenPreparation(
        settings,
        found.cache_folder,
        readers.all,
        [readers.cache(readers.datasets.name_of(reader)) for reader in readers.all],
        rejections,
        readers.datasets,
        readers.lineage,
        partial(add_reference, settings, record, partial(_built, chosen, data.tokenizer), report),
    )


def _built(chosen: Chosen, tokenizer: Tokenizer) -> tuple[object, Mapping[str, str], Callable[[], Built]]:
    """Return the bare model, its hardware, and a function that wraps it."""
    optimizer = chosen.request.ports.optimizer(chosen.torch)
    model = bare_model(chosen, tokenizer, optimizer)
    return model, chosen.hardware, partial(wrap_model, chosen, optimizer, model)


def _divided_as_in_the_run(record: Mapping[str, Any], found: Found) -> RunData:
    """Return the data as the run itself will read them: files that were added since it began are separate parts."""
    if (known := known_data(record)) is None:
        return found.data
    return divide_ahead(record, known, found.data, grows=may_grow(found.settings, found.mode))
