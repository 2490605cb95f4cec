"""Checks the data of a run against its rules, without tokenizing them."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.data.rejected_records import (
    LOSES_REST,
    LOST,
    RULE,
    ReadStatistics,
    RejectedRecords,
    counts_of,
    lost_line,
    reason_of,
)
from holdfast.application.data.shard_meta import total_drops, total_warnings
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.adapter_choice.data_sources import report_remarks
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.operations.open_preparation import begun_run
from holdfast.bootstrap.operations.prepare_data import place_of
from holdfast.bootstrap.stages.identify.stage import find_data
from holdfast.bootstrap.stages.open_run.hub_choice import refuse_offline
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.error_messages import one_line
from holdfast.configs.secret_masking import mask
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.bootstrap.stages.prepare.named_version import OpenDataset
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.data_source import Unit

_EXAMPLES = 3  # of each reason


@dataclass(frozen=True, slots=True)
class ValidatedData:
    """The result of a check: the number of ``records`` read, and the numbers of drops and warnings by reason.

    ``examples`` are some of the records that were left out, by reason. ``lost`` tells of the files that cannot be read
    to their end, None if there are none. ``problem`` is the error that a run would end
    with, None if there is none. ``remarks`` are on the files, those that are not read among them.
    """

    records: int
    drops: Mapping[str, int]
    warnings: Mapping[str, int]
    examples: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    problem: str | None = None
    remarks: Sequence[str] = ()
    lost: str | None = None

    @property
    def kept(self) -> int:
        """Return the number of records that a run would use, before duplicates are left out."""
        return self.records - sum(self.drops.values())

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "records": self.records,
            "kept": self.kept,
            "drops": dict(self.drops),
            "warnings": dict(self.warnings),
            "examples": {reason: [*map(dict, some)] for reason, some in self.examples.items()},
            "problem": self.problem,
            "remarks": list(self.remarks),
            "lost": self.lost,
        }


def validate_data(settings: TrainSettings, show: Callable[[int, int], object]) -> ValidatedData:
    """Read all data of ``settings`` once, by the rules of a run that has begun with them, on all cores.

    ``show`` gets the bytes read and the total. Records that cannot be used are counted; the first of them ends a run,
    unless data.on_error skips them. Raises ``ConfigurationError`` if the data are tokens, and ``DataError`` if they
    cannot be read at all.
    """
    if settings.data.are_tokens:
        msg = "data.kind=tokens has no records to validate: name the text that the tokens were made from"
        raise ConfigurationError(msg)
    refuse_offline(settings)
    settings, _, begun = begun_run(settings)
    found = find_data(Request(settings, settings.run.directory, Ports(settings, {}), _ignore, begun=begun))
    source, pipeline, limit = found.data.source, found.pipeline(found.data, None), found.records.limit
    encoder = TextDocumentEncoder(MemoryTokenizer())  # no text is tokenized
    reader = TextReader(source, encoder, RejectedRecords("skip"), pipeline)
    check, units, problem = _Check(reader, show), source.units(), None
    remarks: list[str] = []
    try:
        report_remarks(source, settings.data, remarks.append)
        with ThreadPoolExecutor(settings.data.workers or usable_cpus()) as pool:
            list(pool.map(check.read, units))
        if limit is not None:
            limit.add(check.statistics.records, check.statistics.drops)
            limit.finish()
    except DataError as error:
        problem = str(error)
    if pipeline.watch is not None and (sentence := pipeline.watch.sentence()) is not None:
        remarks.append(sentence)
    read = check.statistics
    if problem is None and settings.data.on_error == "stop" and check.refused is not None:
        problem = f"{check.refused['reason']} (to skip records that cannot be used: data.on_error=skip)"
    ordered = {reason: check.examples[reason] for reason in sorted(check.examples)}
    drops = {reason: count for reason, count in read.drops.items() if reason != LOST}
    records = read.records - read.drops.get(LOST, 0)
    return ValidatedData(records, drops, read.warnings, ordered, problem, remarks, lost_line(check.lost))


@final
class _Check:
    """Reads units of ``reader`` in several threads, and keeps the first records that were left out for each reason."""

    def __init__(self, reader: TextReader, show: Callable[[int, int], object]) -> None:
        self._reader = reader
        self._show = show
        self._total = sum(unit.size for unit in reader.source.units())
        self._done = 0
        self._lock = Lock()
        self.statistics = ReadStatistics()
        self.examples: dict[str, list[Mapping[str, object]]] = {}
        self.refused: Mapping[str, object] | None = None
        self.lost: list[Mapping[str, object]] = []

    def read(self, unit: Unit) -> None:
        """Read ``unit``."""
        for _ in self._reader.texts(unit, self.statistics, self._note):
            pass
        with self._lock:
            self._done += unit.size
            self._show(self._done, self._total)

    def _note(self, record: Mapping[str, object]) -> None:
        some = self.examples.setdefault(reason_of(record), [])
        if RULE not in record:
            self.refused = self.refused or record
        if LOSES_REST in record:
            self.lost.append(record)
        if len(some) < _EXAMPLES:
            some.append(record)


def validation_lines(found: ValidatedData) -> list[str]:
    """Return the result of a check as lines for a person, the last one with the verdict."""
    lines = [*found.remarks, f"{counted(found.records, 'record')} read, {found.kept:,} kept"]
    for title, counts in (("left out", found.drops), ("used with a warning", found.warnings)):
        if counts:
            lines += ["", f"{title}:"]
        for reason, count, remedy in counts_of(counts):
            lines.append(f"    {count:>9,} {reason}{remedy}")
            lines += _examples(found, reason) if title == "left out" else ()
    if found.lost is not None:
        lines += ["", found.lost, *_examples(found, LOST)]
    return [*lines, "", found.problem or "the data pass: no rule ends a run"]


def _examples(found: ValidatedData, reason: str) -> Iterator[str]:
    for record in found.examples.get(reason, ()):
        place = f"{record['unit']}, position {record['position']}: " if RULE in record else ""
        yield f"              {one_line(place + str(record['reason']))}"


def _ignore(_: str) -> None:
    pass


def reject_lines(dataset: OpenDataset, *, as_json: bool) -> Iterator[str]:
    """Yield a line for each listed record of ``dataset``: its place, the rule and the reason, with secrets masked.

    With ``as_json`` each line is an object as in ``rejected.jsonl``; otherwise the last lines count all records that
    were left out by rule, including those that are not listed, and those that are used with a warning. Memory holds the
    description of one shard at a time.
    """
    drops: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    lost: list[Any] = []
    for shard in dataset.tokens.shards():
        meta: Any = dataset.tokens.meta(shard)
        drops.update(total_drops([meta]))
        warnings.update(total_warnings([meta]))
        for record in meta["rejected"]:
            shown = mask(record)
            if LOSES_REST in record:
                lost.append(record)
            yield json.dumps(shown) if as_json else one_line(place_of(shown))
    if not as_json:
        counts = counts_of(drops)
        yield f"{dataset.folder}: {counted(sum(count for _, count, _ in counts), 'record')} left out"
        yield from (f"{count:10,}  {one_line(rule)}{remedy}" for rule, count, remedy in sorted(counts))
        if (line := lost_line(lost)) is not None:
            yield line
        if warnings:
            yield "used with a warning:"
            yield from (f"{count:10,}  {one_line(rule)}" for rule, count in sorted(warnings.items()))
