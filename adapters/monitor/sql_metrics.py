"""Stores figures in a SQL database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.shared.sql.database import SqlSchema, storable, storable_json, storable_name
from holdfast.domain.errors import StateError
from holdfast.ports.monitor import EndState, NoteKind, RunDescription, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.adapters.shared.sql.database import Database

_PATIENCE_SECONDS = 2.0
_RETRY_SECONDS = 10.0
_ROWS_OF_TRANSACTION = 10_000
_MOST_WAITING = 200_000
_BEGIN = """
    INSERT INTO metric_runs (run, name, folder, settings, data, environment, num_ranks, began, state)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running')
    ON CONFLICT (run) DO UPDATE SET name = excluded.name, folder = excluded.folder, settings = excluded.settings,
        data = excluded.data, environment = excluded.environment, num_ranks = excluded.num_ranks, state = 'running',
        ended = NULL
"""
_REWIND = """
    DELETE FROM metric_values
    WHERE series_id IN (SELECT series_id FROM metric_series WHERE run_id = ?) AND step > ?
"""
_NOTE = "INSERT INTO metric_notes (run_id, step, kind, text, written) VALUES (?, ?, ?, ?, ?)"
_END = "UPDATE metric_runs SET state = ?, ended = ? WHERE run_id = ?"
_NEW_SERIES = "INSERT INTO metric_series (run_id, name) VALUES (?, ?) ON CONFLICT DO NOTHING"
_SERIES = "SELECT name, series_id FROM metric_series WHERE run_id = ?"


@final
class SqlTracker(Tracker):
    r"""Stores the figures of a run in the tables of ``database``, which many runs may share.

    A step has one value of each metric: a later one replaces it. Figures and notes wait in memory until they are 10,000
    or a record comes two seconds after the last transaction, and are durable after ``flush``. If the database refuses
    them, they wait on, and a record tries again after ten seconds; once 200,000 wait, all of them are dropped, which is
    a ``StateError``. ``rewind`` keeps the notes.

    A backslash in the name of a metric is stored as two, and NUL and lone surrogates as ``\uXXXX``. U+FFFD replaces
    these characters in other texts, apart from NUL in notes, which is left out. Raises ``StateError`` if the database
    cannot be used, and ``ConfigurationError`` if its tables are newer than this version of Holdfast.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._run_id: int | None = None
        self._values: dict[tuple[str, int], float] = {}
        self._notes: list[tuple[int, str, str, float]] = []
        self._series: dict[str, int] = {}
        self._due = 0.0
        self._has_failed = False
        self._closed = False

    @override
    def begin(self, run: RunDescription) -> None:
        texts = [storable(text) for text in (run.run_id, run.name, str(run.folder.absolute()))]
        details = [storable_json(part) for part in (run.settings, run.data, run.environment)]
        with self._database.transaction():
            self._database.many(_BEGIN, [(*texts, *details, run.num_ranks, time.time())])
            ((self._run_id,),) = self._database.rows("SELECT run_id FROM metric_runs WHERE run = ?", texts[0])

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self._values |= {(storable_name(name), step): float(value) for name, value in metrics.items()}
            self._write_if_due()

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        if not self._closed:
            self._notes.append((step, kind.value, storable(text.replace("\0", "")), time.time()))
            self._write_if_due()

    @override
    def rewind(self, step: int) -> None:
        self._values = {place: value for place, value in self._values.items() if step > 0 and place[1] <= step}
        with self._database.transaction():
            self._database.many(_REWIND, [(self._run_id, step or -1)])

    @override
    def flush(self) -> None:
        self._write()

    @override
    def finish(self, state: EndState) -> None:
        self._write()
        with self._database.transaction():
            self._database.many(_END, [(state.value, time.time(), self._run_id)])

    @override
    def close(self) -> None:
        is_first, self._closed = not self._closed, True
        try:
            if is_first:
                self._write()
        finally:
            self._database.close()

    def _write_if_due(self) -> None:
        num_waiting = len(self._values) + len(self._notes)
        if num_waiting > _MOST_WAITING:
            self._values, self._notes = {}, []
            msg = f"the metrics database has accepted nothing for too long: {num_waiting:,} waiting values are dropped"
            raise StateError(msg)
        if self._clock() >= self._due or (num_waiting >= _ROWS_OF_TRANSACTION and not self._has_failed):
            self._write()

    def _write(self) -> None:
        """Store all figures and notes that wait, as a whole or not at all."""
        if self._run_id is None or not (self._values or self._notes):
            return
        self._has_failed, self._due = True, self._clock() + _RETRY_SECONDS
        try:
            with self._database.transaction():
                self._store_values(self._run_id)
                self._database.many(_NOTE, [(self._run_id, *note) for note in self._notes])
        except BaseException:
            self._series = {}  # the rows of new names were not kept
            raise
        self._values, self._notes = {}, []
        self._has_failed, self._due = False, self._clock() + _PATIENCE_SECONDS

    def _store_values(self, run_id: int) -> None:
        if not self._values:
            return
        names = {name for name, _ in self._values}
        if new := sorted(names - self._series.keys()):
            self._database.many(_NEW_SERIES, [(run_id, name) for name in new])
            self._series = dict(self._database.rows(_SERIES, run_id))
        columns = {
            "series_id": np.array([self._series[name] for name, _ in self._values], np.int64),
            "step": np.array([step for _, step in self._values], np.int64),
            "value": np.array(list(self._values.values()), np.float64),
        }
        self._database.merge("metric_values", ("series_id", "step"), columns)


_SQLITE = {
    "identity": "integer PRIMARY KEY",
    "json": "text",
    "value": "",  # a column with the type of SQLite's own numbers loses the sign of minus zero
    "values_options": "WITHOUT ROWID",
}
_POSTGRES = {
    "identity": "integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "json": "jsonb",
    "value": "double precision",
    "values_options": "",
}

_FIRST = """
CREATE TABLE metric_runs (
    run_id {identity}, run text NOT NULL UNIQUE, name text NOT NULL, folder text NOT NULL, settings {json} NOT NULL,
    data {json} NOT NULL, environment {json} NOT NULL, num_ranks integer NOT NULL, began double precision NOT NULL,
    state text NOT NULL, ended double precision
);
CREATE TABLE metric_series (
    series_id {identity}, run_id integer NOT NULL REFERENCES metric_runs, name text NOT NULL, UNIQUE (run_id, name)
);
CREATE TABLE metric_values (
    series_id integer NOT NULL, step bigint NOT NULL, value {value}, PRIMARY KEY (series_id, step)
) {values_options};
CREATE TABLE metric_notes (
    note_id {identity}, run_id integer NOT NULL REFERENCES metric_runs, step bigint NOT NULL, kind text NOT NULL,
    text text NOT NULL, written double precision NOT NULL
);
CREATE INDEX metric_notes_run ON metric_notes (run_id, step);
CREATE VIEW metrics AS
    SELECT r.run, r.name AS run_name, v.step, s.name, v.value
    FROM metric_runs AS r JOIN metric_series AS s USING (run_id) JOIN metric_values AS v USING (series_id)
"""

METRICS = SqlSchema(
    noun="the record of metrics",
    setting='the dsn of the monitor "postgres"',
    version_table="metrics_version",
    migrations=(_FIRST,),
    sqlite=_SQLITE,
    postgres=_POSTGRES,
)
"""The tables of metrics: a run has series, and a series has one value for each step."""
