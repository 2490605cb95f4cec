"""Tokenizes the data of a run before it trains."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.application.data.pretokenize import Prepared, PrepareTokens
from holdfast.application.data.rejected_records import RULE
from holdfast.bootstrap.process.progress_bar import ProgressBar
from holdfast.bootstrap.run_folder.folder import read_record, tokenizer_before
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.assembly import assemble
from holdfast.bootstrap.wiring.compatibility import check_description, check_tokenizer, with_former_tokenizer
from holdfast.bootstrap.wiring.data_growth_plan import divide_ahead, may_grow
from holdfast.bootstrap.wiring.data_identity import known_data
from holdfast.bootstrap.wiring.data_streams import form_of, holds_pairs
from holdfast.bootstrap.wiring.record_files import rejections_of
from holdfast.bootstrap.wiring.reference_model import compute_reference, hold_to_reference, reference_column
from holdfast.bootstrap.wiring.screen import phases_shown
from holdfast.bootstrap.wiring.step_sizes import with_sizes
from holdfast.configs.secret_masking import mask, mask_text
from holdfast.domain.counting import counted
from holdfast.domain.data.profile import ProfileBuilder
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.wiring.open_lineage import Lineage
    from holdfast.bootstrap.wiring.run_parts import DataParts, RunData
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.dataset_version import DatasetVersion
    from holdfast.ports.token_cache import TokenCache

_MOST_SHOWN = 5


def prepare_ahead(
    settings: TrainSettings, *, is_quiet: bool = False
) -> tuple[Path, Prepared, list[Mapping[str, object]], Sequence[DatasetVersion]]:
    """Fill the token cache for a run of ``settings``; return its path, its content, rejected records and versions.

    Shows a progress bar and notes on standard error, unless ``is_quiet``. After a kill, another call continues from the
    same point. Raises ``ConfigurationError`` if the data are tokens already.
    """
    if form_of(settings.data) == "tokens":
        msg = "data.kind=tokens is prepared already: train on it as it is"
        raise ConfigurationError(msg)
    rejected: list[Mapping[str, object]] = []
    rejections = rejections_of(settings.data, lambda record: rejected.append(mask(dict(record))))
    folder, report = settings.run.directory, _report_nothing if is_quiet else _report
    record = read_record(folder) if RunLayout(folder).record.exists() else {}
    settings = with_sizes(with_former_tokenizer(settings, tokenizer_before(folder)), {}, _choose_anew)
    known = known_data(record)
    given = {"rejections": rejections, "places": {} if known is None else known.first_places}
    with phases_shown(is_quiet=is_quiet) as show:
        container = assemble(settings, folder, given, report=report, keep_choice=_choose_anew, show=show)
        parts: DataParts = container.data_parts()
        container.late_data().set(_divided_as_in_the_run(record, parts))
        show("preparing the tokenizer")
        check_description(parts.factory, settings, is_new=not record)
        check_tokenizer(container.run_tokenizer(), parts.factory, settings, is_new=not record)
        readers, datasets = container.all_readers(), container.datasets()
    lineage: Lineage = container.lineage()
    with closing(lineage), lineage.preparing(readers):
        caches = [container.token_cache(datasets.name_of(reader)) for reader in readers]
        with ProgressBar("tokenizing", is_quiet=is_quiet) as bar:
            prepared = _prepare(readers, caches, rejections, settings.data.workers or usable_cpus(), bar)
        if holds_pairs(settings.data):
            with phases_shown(is_quiet=is_quiet) as show:
                column = reference_column(container.model(), settings, container.hardware())
                hold_to_reference(column, record, folder)
                compute_reference(container.model_parts(), column, lambda: caches, report=report, show=show)
        for reader in readers:
            datasets.keep(reader)
        lineage.versions.keep(readers, caches, datasets)
    return container.cache_folder(), Prepared.total(prepared), rejected, lineage.versions.used


def left_out_lines(prepared: Prepared, rejected: Sequence[Mapping[str, object]]) -> list[str]:
    """Return lines for a person about the records that were left out: their number by reason, and the first ones."""
    total = sum(prepared.drops.values())
    if not total:
        return []
    lines = [f"{counted(total, 'record')} left out:"]
    lines += [f"    {count:>9,} {reason}" for reason, count in sorted(prepared.drops.items(), key=_most_first)]
    if rejected:
        lines += [f"the first of {len(rejected):,} with details (`data rejects` lists all):"]
        lines += [f"    {place_of(record)}" for record in rejected[:_MOST_SHOWN]]
    return lines


def place_of(record: Mapping[str, object]) -> str:
    """Return the reason why a record was left out, with its place and its rule unless the reason names the place."""
    if RULE not in record:
        return str(record["reason"])
    return f"{record['unit']}, position {record['position']}: {record[RULE]}: {record['reason']}"


def _most_first(counted_reason: tuple[str, int]) -> tuple[int, str]:
    return -counted_reason[1], counted_reason[0]


def _prepare(
    readers: Sequence[TextReader],
    caches: Sequence[TokenCache],
    rejections: RejectedRecords,
    workers: int,
    bar: ProgressBar,
) -> list[Prepared]:
    """Tokenize all that is missing from the caches of ``readers``, shown by ``bar``, and check that it stayed."""
    preparations = [
        PrepareTokens(reader, cache, rejections, progress=bar.show, workers=workers, new_profile=ProfileBuilder)
        for reader, cache in zip(readers, caches, strict=True)
    ]
    prepared = [preparation.run() for preparation in preparations]
    for preparation in preparations:
        preparation.check()  # the cache may have evicted earlier tokens to make room for later ones
    return prepared


def _choose_anew(_name: str, value: str, _reason: str) -> str:
    return value


def _divided_as_in_the_run(record: Mapping[str, Any], parts: DataParts) -> RunData:
    """Return the data as the run itself will read them: files that were added since it began are separate parts."""
    if (known := known_data(record)) is None:
        return parts.found
    return divide_ahead(record, known, parts.found, grows=may_grow(parts.settings, parts.mode))


def _report(line: str) -> None:
    sys.stderr.write(f"{mask_text(line)}\n")


def _report_nothing(_: str) -> None:
    pass
