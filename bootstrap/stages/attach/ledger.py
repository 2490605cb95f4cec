"""Opens the ledger of a run."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.adapters.ledger.sql import LEDGER
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.data.rejected_records import reason_of
from holdfast.application.handlers.record_ledger import RecordLedger
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.attach.monitors import connection_string
from holdfast.bootstrap.stages.identify.data_form import parts_of
from holdfast.bootstrap.stages.prepare.data_tracing import trained_spans
from holdfast.configs.rendering import dump_settings
from holdfast.domain.data.batch import UnitName
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.events import (
    CheckpointSaved,
    CheckpointStarted,
    DataEnded,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
)
from holdfast.ports.ledger import Rejects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.domain.data.cursor import Cursor
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.events import Event
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.ledger import Ledger

    Subscription = tuple[type[Event], Callable[[Any], object]]

LEDGER_KINDS = ("none", "sqlite", "postgres", "memory")


def open_ledger(section: Any, folder: Path, report: Callable[[str], object]) -> Ledger | None:
    """Return the ledger that ``section`` of the settings chooses for the run in ``folder``, or None.

    A ledger in a database never stops training: its calls wait in the run folder while the database does not answer,
    and ``report`` says so. Raises ``ConfigurationError`` if the database has another schema, and if a run that has
    recorded nothing in it yet cannot reach it.
    """
    layout = RunLayout(folder)
    if section.kind == "none":
        return None
    if section.kind == "memory":
        ledger: Ledger = lazy("holdfast.adapters.ledger.memory:MemoryLedger")()
        return ledger
    if section.kind not in LEDGER_KINDS:
        plugin = load_plugin("ledger", section.kind, built_in=LEDGER_KINDS)
        check_options("ledger", section.kind, plugin, **section.options)
        inner = build_plugin("ledger", section.kind, plugin, **section.options)
    else:
        inner = lazy("holdfast.adapters.ledger.sql:SqlLedger")(open_database(section, folder))
    spilling: Ledger = lazy("holdfast.adapters.ledger.spilling:SpillingLedger")(
        inner, layout.ledger_calls, report=report
    )
    return spilling


def ledger_subscriptions(
    parts: RunParts,
    ledger: Ledger,
    run: str,
    names: Sequence[str],
    rejected: RejectedFiles,
    excluded: Exclusion,
    stack: ExitStack,
) -> list[Subscription]:
    """Return the subscriptions of the first rank that record the run with the id ``run`` in ``ledger``.

    ``names`` are those of the sources of the data, ``rejected`` has the records that are left out, and ``excluded`` are
    the documents that the run excludes. The ledger is closed when ``stack`` ends.
    """
    cursors: list[Cursor] = []

    def note(event: RunStarted | RolledBack) -> None:
        """Note a position from which streamed data can be read again."""
        cursors.append(event.progress.cursor)

    def reject(_: Event) -> None:
        """Pass on the records that were left out since the last call."""
        if (rejects := rejected.take()) is not None:
            record.reject(rejects)

    details = {"name": parts.settings.run.shown_name, "settings": dump_settings(parts.settings)}
    spans_of = trained_spans(parts.rows.stream, names, excluded, cursors, stack)
    record = stack.enter_context(closing(RecordLedger(ledger, run, spans_of, details)))
    return [
        *((kind, note) for kind in (RunStarted, RolledBack)),
        (RunStarted, record.on_start),
        (RunStarted, lambda _: record.on_stored(parts.opened.state_store.list())),
        *((kind, reject) for kind in (RunStarted, CheckpointStarted, RunFinished, RunFailed)),
        (StepCompleted, record.on_step),
        (RolledBack, record.on_roll_back),
        (CheckpointStarted, record.settle),
        (CheckpointSaved, record.on_save),
        *((kind, record.on_stop) for kind in (DataEnded, StopRequested)),
        *((kind, record.on_end) for kind in (RunFinished, RunFailed)),
    ]


def open_database(section: Any, folder: Path) -> Any:
    """Return the database of the kind ``sqlite`` or ``postgres``; raises the errors of ``open_ledger``."""
    layout = RunLayout(folder)
    if section.kind == "sqlite":
        return lazy("holdfast.adapters.shared.sql.sqlite_database:SqliteDatabase")(layout.ledger, LEDGER)
    dsn = connection_string(section.dsn, "ledger.dsn")
    try:
        postgres = lazy("holdfast.adapters.shared.sql.postgres_database:PostgresDatabase")
        try:
            return postgres(dsn, LEDGER)
        except StateError as error:
            if layout.ledger_calls.is_dir():  # the run has used the database: it may be away for a while
                return postgres(dsn, LEDGER, connects_at_once=False)
            raise ConfigurationError(str(error)) from None
    except ImportError as error:
        msg = 'ledger.kind=postgres needs another package: pip install "holdfast-lm[postgres]"'
        raise ConfigurationError(msg) from error


@final
class RejectedFiles:
    """The records in ``files``, those of ``rejected.jsonl`` of all ranks, each given once.

    ``names`` are those of the sources in ``source``.
    """

    def __init__(self, files: Sequence[Path], names: Sequence[str], source: DataSource) -> None:
        self._done = dict.fromkeys(files, (0, 0))  # bytes and records
        self._given: set[tuple[str, int]] = set()  # another rank may have met the same record
        self._default = names[0]
        parts = parts_of(source) if len(names) > 1 else ()
        self._names = {unit.name: name for name, part in zip(names, parts, strict=False) for unit in part.units()}

    def take(self) -> Rejects | None:
        """Return the records that were added since the last call, None if there are none."""
        new_records = []
        for file, (size, count) in self._done.items():
            now = file.stat().st_size if file.exists() else 0
            if now != size:
                records = list(JsonLines(file).read())
                new_records += records[count:]
                self._done[file] = (now, len(records))
        places = {
            place: each
            for each in new_records
            if "unit" in each
            and type(each.get("position")) is int
            and (place := (str(each["unit"]), each["position"])) not in self._given
        }
        self._given.update(places)
        new_records = list(places.values())
        if not new_records:
            return None
        units = [UnitName(self._names.get(str(each["unit"]), self._default), str(each["unit"])) for each in new_records]
        numbers = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
        return Rejects(
            np.array([numbers[unit] for unit in units], np.int64),
            np.array([each["position"] for each in new_records], np.int64),
            tuple(map(reason_of, new_records)),
            tuple(str(each.get("reason", "")) for each in new_records),
            tuple(numbers),
        )


def rejected_files(parts: RunParts, names: Sequence[str], source: DataSource) -> RejectedFiles:
    """Return the rejected records of all ranks of the run with ``parts``; ``names`` are those of ``source``."""
    layout, ranks = RunLayout(parts.host.directory), parts.opened.process_group.size
    return RejectedFiles([*map(layout.rejected, range(ranks))], names, source)
