"""Tokenizes the data of a run before it trains."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.application.data.rejected_records import RULE, counts_of, lost_line
from holdfast.application.data.shard_meta import total_warnings
from holdfast.bootstrap.operations.open_preparation import open_preparation
from holdfast.bootstrap.process.printing import ProgressBar
from holdfast.bootstrap.stages.open_run.screen import phases_shown
from holdfast.bootstrap.stages.prepare.data_streams import warnings_line
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.errors import RestartNeeded
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.pretokenize import Prepared
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.dataset_version import DatasetVersion
    from holdfast.domain.data.work_part import WorkPart

_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PreparedAhead:
    """What `prepare` has made: the ``folder`` of the tokens, and of its part ``prepared`` and ``rejected`` records.

    ``num_missing`` of ``num_shards`` shards, those of other parts included, are not there yet. ``versions`` are those
    of the data, none as long as shards are missing.
    """

    folder: Path
    prepared: Prepared
    rejected: Sequence[Mapping[str, object]]
    versions: Sequence[DatasetVersion]
    num_missing: int
    num_shards: int


def prepare_ahead(settings: TrainSettings, *, is_quiet: bool = False, part: WorkPart = WHOLE) -> PreparedAhead:
    """Fill the token cache for a run of ``settings``, or make only the shards of ``part``.

    The process that makes the last shard also records the versions of the data, and computes the log-probabilities of a
    reference model if the data are preferences. Shows a progress bar and notes on standard error, unless ``is_quiet``.
    After a kill, another call continues from the same point. Raises ``ConfigurationError`` if the data are tokens
    already, and ``RestartNeeded`` if a part has to wait for others.
    """
    rejected: list[Mapping[str, object]] = []
    report = _report_nothing if is_quiet else _report
    with phases_shown(is_quiet=is_quiet) as show:
        opened = open_preparation(settings, rejected.append, report, show, part)
    with closing(opened.lineage), opened.lineage.preparing(opened.readers):
        with ProgressBar("tokenizing", is_quiet=is_quiet) as bar:
            prepared = opened.make(part, bar.show)
        num_missing, num_shards = opened.num_missing()
        if not num_missing:
            if part != WHOLE:  # this was the last one, so now all of them can be judged together
                rejected.clear()
                prepared = opened.make()
            with phases_shown(is_quiet=is_quiet) as show:
                opened.finish(show)
        if warnings := total_warnings([cache.meta(shard) for cache in opened.caches for shard in cache.shards()]):
            report(warnings_line(warnings))
        for reader in opened.readers:
            reader.tell_lacking_fields()
    versions = opened.lineage.versions.used
    return PreparedAhead(opened.folder, prepared, rejected, versions, num_missing, num_shards)


def finish_preparation(settings: TrainSettings, *, is_quiet: bool = False) -> PreparedAhead:
    """Do what the last of several parts does, without making any shard.

    Raises ``RestartNeeded`` if shards are missing.
    """
    rejected: list[Mapping[str, object]] = []
    report = _report_nothing if is_quiet else _report
    with phases_shown(is_quiet=is_quiet) as show:
        opened = open_preparation(settings, rejected.append, report, show)
        num_missing, num_shards = opened.num_missing()
        if num_missing:
            msg = (
                f"{num_missing:,} of {num_shards:,} shards are missing: run the parts that make them, then this "
                "command again; prepare without --finish makes them here"
            )
            raise RestartNeeded(msg)
        with closing(opened.lineage), opened.lineage.preparing(opened.readers):
            prepared = opened.make()
            opened.finish(show)
    return PreparedAhead(opened.folder, prepared, rejected, opened.lineage.versions.used, 0, num_shards)


def left_out_lines(prepared: Prepared, rejected: Sequence[Mapping[str, object]]) -> list[str]:
    """Return lines for a person about the records that were left out: their number by reason, and the first ones."""
    if not prepared.drops:
        return []
    counts = counts_of(prepared.drops)
    lines = [f"{counted(sum(count for _, count, _ in counts), 'record')} left out:"] if counts else []
    lines += [f"    {count:>9,} {reason}{remedy}" for reason, count, remedy in counts]
    if (lost := lost_line(rejected)) is not None:
        lines.append(lost)
    if rejected:
        lines += [f"the first of {len(rejected):,} with details (`data rejects` lists all):"]
        lines += [f"    {place_of(record)}" for record in rejected[:_MOST_SHOWN]]
    return lines


def place_of(record: Mapping[str, object]) -> str:
    """Return the reason why a record was left out, with its place and its rule unless the reason names the place."""
    if RULE not in record:
        return str(record["reason"])
    return f"{record['unit']}, position {record['position']}: {record[RULE]}: {record['reason']}"


def _report(line: str) -> None:
    sys.stderr.write(f"{mask_text(line)}\n")


def _report_nothing(_: str) -> None:
    pass
