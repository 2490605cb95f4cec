"""A ledger in a SQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.ledger.attempts import (
    Attempt,
    Changes,
    changes_of,
    check_record,
    no_spans,
    rejects_from,
    spans_of_steps,
    steps_from,
    totals_of,
)
from holdfast.adapters.shared.sql.database import SqlSchema, storable, storable_json
from holdfast.domain.data.batch import Spans, UnitName
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import CheckpointRecord, Ledger, SourceCount, StepTaken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.adapters.shared.sql.database import Database
    from holdfast.ports.ledger import Rejects, StepRecords

_SPANS_OF_SEGMENT = 1 << 17
_RUN = "SELECT run_id FROM runs WHERE run = ?"
_SPANS = """
    SELECT s.first_sample, p.sample_row, p.epoch, p.document, p.position, p.first_token, p.num_tokens, o.source, u.unit
    FROM runs AS r JOIN steps AS s USING (run_id) JOIN spans AS p USING (run_id, step, attempt)
        JOIN units AS u USING (unit_id) JOIN sources AS o USING (source_id)
    WHERE r.run = ? AND s.step = ? AND s.is_current ORDER BY p.number
"""
_STEPS_WITH = """
    SELECT DISTINCT r.run, s.step, s.attempt, s.is_current
    FROM spans AS p JOIN steps AS s USING (run_id, step, attempt) JOIN runs AS r USING (run_id)
    WHERE p.document = ? AND p.segment_id IN
"""
_COUNTS = """
    SELECT o.source, sum(c.samples), sum(c.spans), sum(c.tokens)
    FROM runs AS r JOIN step_sources AS c USING (run_id) JOIN steps AS s USING (run_id, step, attempt)
        JOIN sources AS o USING (source_id)
    WHERE r.run = ? AND c.epoch = ? AND s.is_current GROUP BY o.source
"""


@final
class SqlLedger(Ledger):
    """Records runs in the tables of ``database``; the id of a document is stored as a signed number of 64 bits.

    U+FFFD replaces the characters of names and reasons that a database cannot store: NUL and lone surrogates.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sources: dict[str, int] = {}
        self._units: dict[UnitName, int] = {}

    @override
    def begin_run(self, run: str, details: Mapping[str, object], time: float) -> None:
        begin = (
            "INSERT INTO runs (run, details, began, state) VALUES (?, ?, ?, 'running') "
            "ON CONFLICT (run) DO UPDATE SET details = excluded.details, state = 'running', ended = NULL"
        )
        with self._database.transaction():
            self._database.many(begin, [(run, storable_json(details), time)])

    @override
    def end_run(self, run: str, state: str, time: float) -> None:
        with self._database.transaction():
            end = "UPDATE runs SET state = ?, ended = ? WHERE run_id = ?"
            self._database.many(end, [(state, time, self._id_of(run))])

    @override
    def record(self, run: str, steps: StepRecords, spans: Spans) -> None:
        check_record(steps, spans)
        if not len(steps.step):
            return
        try:
            with self._database.transaction():
                run_id = self._id_of(run)
                changes = changes_of(steps, self._attempts(run_id, int(steps.step[0]), int(steps.step[-1])))
                self._change(run_id, steps, changes)
                self._add_spans(run_id, steps, spans, changes)
        except BaseException:
            self._sources, self._units = {}, {}  # the rows of new names were not kept
            raise

    @override
    def roll_back(self, run: str, to_step: int) -> None:
        demote = "UPDATE steps SET is_current = FALSE WHERE run_id = ? AND step > ? AND is_current"
        with self._database.transaction():
            self._database.many(demote, [(self._id_of(run), to_step)])

    @override
    def reject(self, run: str, rejects: Rejects) -> None:
        add = (
            "INSERT INTO rejects (run_id, unit_id, position, rule, reason) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING"
        )
        try:
            with self._database.transaction():
                run_id, units = self._id_of(run), self._ids_of_units(rejects.units)
                texts = ([storable(text) for text in column] for column in (rejects.rule, rejects.reason))
                of = (units[rejects.unit].tolist(), rejects.position.tolist(), *texts)
                self._database.many(add, [(run_id, *row) for row in zip(*of, strict=True)])
        except BaseException:
            self._sources, self._units = {}, {}
            raise

    @override
    def checkpoint(self, run: str, saved: CheckpointRecord) -> None:
        add = (
            "INSERT INTO checkpoints (run_id, step, location, reason, saved) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (run_id, step) DO UPDATE "
            "SET location = excluded.location, reason = excluded.reason, saved = excluded.saved"
        )
        with self._database.transaction():
            values = (self._id_of(run), saved.step, storable(saved.location), storable(saved.reason), saved.time)
            self._database.many(add, [values])

    @override
    def flush(self) -> None:
        pass

    @override
    def close(self) -> None:
        self._database.close()

    @override
    def steps(self, run: str) -> StepRecords:
        query = (
            "SELECT step, first_sample, end_sample, loss, tokens FROM steps JOIN runs USING (run_id) "
            "WHERE run = ? AND is_current ORDER BY step"
        )
        return steps_from(self._answer(query, run))

    @override
    def documents_in(self, run: str, step: int) -> Spans:
        rows = self._answer(_SPANS, run, step)
        if not rows:
            return no_spans()
        first, row, epoch, document, position, first_token, num_tokens = np.array([one[:7] for one in rows], np.int64).T
        names = [UnitName(*one[7:]) for one in rows]
        units = tuple(sorted(set(names)))
        index = {name: number for number, name in enumerate(units)}
        unit = np.array([index[name] for name in names], np.int64)
        return Spans(first + row, epoch, unit, document.astype(np.uint64), position, first_token, num_tokens, units)

    @override
    def steps_with(self, document: int) -> Sequence[StepTaken]:
        stored = int(np.uint64(document).astype(np.int64))
        with self._database.transaction():
            # each segment is a place in the index of documents: with their numbers no database scans the table
            segments = ", ".join(str(number) for (number,) in self._database.rows("SELECT segment_id FROM segments"))
            rows = self._database.rows(f"{_STEPS_WITH} ({segments})", stored) if segments else []
        return sorted(StepTaken(run, step, attempt, bool(current)) for run, step, attempt, current in rows)

    @override
    def source_counts(self, run: str, epoch: int) -> Mapping[str, SourceCount]:
        return {source: SourceCount(*map(int, counts)) for source, *counts in self._answer(_COUNTS, run, epoch)}

    @override
    def rejected(self, run: str) -> Rejects:
        query = (
            "SELECT source, unit, position, rule, reason FROM runs JOIN rejects USING (run_id) "
            "JOIN units USING (unit_id) JOIN sources USING (source_id) WHERE run = ?"
        )
        return rejects_from((row[0], row[1], row[2], row[3], row[4]) for row in self._answer(query, run))

    @override
    def checkpoints(self, run: str) -> Sequence[CheckpointRecord]:
        query = (
            "SELECT step, location, reason, saved FROM checkpoints JOIN runs USING (run_id) WHERE run = ? ORDER BY step"
        )
        return [CheckpointRecord(*row) for row in self._answer(query, run)]

    def _answer(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._database.transaction():
            return self._database.rows(query, *values)

    def _id_of(self, run: str) -> int:
        """Return the number of ``run``, locked so that no other process records it at the same time."""
        rows = self._database.rows(f"{_RUN}{self._database.locking}", run)
        if not rows:
            msg = f"the ledger has no run {run}: begin it first"
            raise StateError(msg)
        return int(rows[0][0])

    def _attempts(self, run_id: int, first: int, last: int) -> list[Attempt]:
        query = (
            "SELECT step, attempt, first_sample, end_sample, is_current FROM steps "
            "WHERE run_id = ? AND step BETWEEN ? AND ? ORDER BY step, attempt"
        )
        rows = self._database.rows(query, run_id, first, last)
        return [Attempt(row[0], row[1], row[2], row[3], bool(row[4])) for row in rows]

    def _change(self, run_id: int, steps: StepRecords, changes: Changes) -> None:
        demote = "UPDATE steps SET is_current = FALSE WHERE run_id = ? AND step = ? AND attempt = ?"
        self._database.many(demote, [(run_id, *place) for place in changes.demoted])
        revived = [(_number(steps.loss[index]), run_id, step, attempt) for step, attempt, index in changes.revived]
        revive = "UPDATE steps SET is_current = TRUE, loss = ? WHERE run_id = ? AND step = ? AND attempt = ?"
        self._database.many(revive, revived)
        self._database.many(
            "INSERT INTO steps (run_id, step, attempt, is_current, first_sample, end_sample, loss, tokens) "
            "VALUES (?, ?, ?, TRUE, ?, ?, ?, ?)",
            [
                (
                    *(run_id, int(steps.step[index]), attempt),
                    *(int(steps.first_sample[index]), int(steps.end_sample[index])),
                    *(_number(steps.loss[index]), int(steps.tokens[index])),
                )
                for index, attempt in zip(changes.added.tolist(), changes.attempts.tolist(), strict=True)
            ],
        )

    def _add_spans(self, run_id: int, steps: StepRecords, spans: Spans, changes: Changes) -> None:
        places, spans = spans_of_steps(steps, spans, changes.added)
        if not len(places):
            return
        step, first = steps.step[changes.added], steps.first_sample[changes.added]
        begins = np.searchsorted(places, places)  # of the spans of the same step
        columns = {
            "step": step[places],
            "document": spans.document.astype(np.int64),
            "position": spans.position,
            "first_token": spans.first_token,
            "run_id": np.full_like(places, run_id),
            "attempt": changes.attempts[places],
            "number": np.arange(len(places)) - begins,
            "sample_row": spans.sample - first[places],
            "epoch": spans.epoch,
            "unit_id": self._ids_of_units(spans.units)[spans.unit],
            "num_tokens": spans.num_tokens,
            "segment_id": np.full_like(places, self._segment_for(run_id, len(places))),
        }
        self._database.load("spans", columns)
        totals = totals_of(places, spans)
        of = {
            "run_id": np.full_like(totals.place, run_id),
            "step": step[totals.place],
            "attempt": changes.attempts[totals.place],
            "source_id": self._ids_of_sources(totals.sources)[totals.source],
            "epoch": totals.epoch,
            "samples": totals.samples,
            "spans": totals.spans,
            "tokens": totals.tokens,
        }
        self._database.load("step_sources", of)

    def _segment_for(self, run_id: int, num_spans: int) -> int:
        """Return the segment of new spans, after counting them.

        The index of documents is ordered by segment first. Documents come in random order, so an index without
        segments would change a page of the disk for each span once it is large.
        """
        newest = "SELECT segment_id, num_spans FROM segments WHERE run_id = ? ORDER BY segment_id DESC LIMIT 1"
        for segment, count in self._database.rows(newest, run_id):
            if count < _SPANS_OF_SEGMENT:
                add = "UPDATE segments SET num_spans = num_spans + ? WHERE segment_id = ?"
                self._database.many(add, [(num_spans, segment)])
                return int(segment)
        self._database.many("INSERT INTO segments (run_id, num_spans) VALUES (?, ?)", [(run_id, num_spans)])
        return int(self._database.rows(newest, run_id)[0][0])

    def _ids_of_sources(self, sources: Sequence[str]) -> NDArray[np.int64]:
        if new := sorted({source for source in sources if source not in self._sources}):
            add = "INSERT INTO sources (source) VALUES (?) ON CONFLICT DO NOTHING"
            self._database.many(add, [(storable(source),) for source in new])
            for source in new:
                rows = self._database.rows("SELECT source_id FROM sources WHERE source = ?", storable(source))
                self._sources[source] = int(rows[0][0])
        return np.array([self._sources[source] for source in sources], np.int64)

    def _ids_of_units(self, units: Sequence[UnitName]) -> NDArray[np.int64]:
        if new := sorted({unit for unit in units if unit not in self._units}):
            self._ids_of_sources([name.source for name in new])
            of_source = [(self._sources[name.source], storable(name.unit)) for name in new]
            add = "INSERT INTO units (source_id, unit) VALUES (?, ?) ON CONFLICT DO NOTHING"
            self._database.many(add, of_source)
            for name, key in zip(new, of_source, strict=True):
                rows = self._database.rows("SELECT unit_id FROM units WHERE source_id = ? AND unit = ?", *key)
                self._units[name] = int(rows[0][0])
        return np.array([self._units[name] for name in units], np.int64)


def _number(loss: np.float64) -> float | None:
    return None if np.isnan(loss) else float(loss)


_SQLITE = {
    "identity": "integer PRIMARY KEY",
    "json": "text",
    "spans_key": ", PRIMARY KEY (run_id, step, attempt, number)",
    "spans_options": "WITHOUT ROWID",
    "spans_index": "",
}
"""The parts of the schema that are different in SQLite, where the spans of a step lie together in the table itself."""

_POSTGRES = {
    "identity": "integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "json": "jsonb",
    "spans_key": "",
    "spans_options": "",
    "spans_index": "CREATE INDEX spans_step ON spans (run_id, step);",
}
"""The parts of the schema that are different in PostgreSQL, whose index of few distinct keys is small."""

_FIRST = """
CREATE TABLE runs (
    run_id {identity}, run text NOT NULL UNIQUE, details {json} NOT NULL, began double precision NOT NULL,
    state text NOT NULL, ended double precision
);
CREATE TABLE sources (source_id {identity}, source text NOT NULL UNIQUE);
CREATE TABLE units (
    unit_id {identity}, source_id integer NOT NULL REFERENCES sources, unit text NOT NULL, UNIQUE (source_id, unit)
);
CREATE TABLE steps (
    run_id integer NOT NULL REFERENCES runs, step bigint NOT NULL, attempt integer NOT NULL,
    is_current boolean NOT NULL, first_sample bigint NOT NULL, end_sample bigint NOT NULL, loss double precision,
    tokens bigint NOT NULL, PRIMARY KEY (run_id, step, attempt), UNIQUE (run_id, step, first_sample, end_sample)
);
CREATE UNIQUE INDEX steps_current ON steps (run_id, step) WHERE is_current;
CREATE TABLE step_sources (
    run_id integer NOT NULL, step bigint NOT NULL, attempt integer NOT NULL, source_id integer NOT NULL,
    epoch integer NOT NULL, samples integer NOT NULL, spans integer NOT NULL, tokens bigint NOT NULL,
    PRIMARY KEY (run_id, step, attempt, source_id, epoch)
);
CREATE TABLE segments (
    segment_id {identity}, run_id integer NOT NULL REFERENCES runs, num_spans bigint NOT NULL
);
CREATE INDEX segments_run ON segments (run_id);
CREATE TABLE spans (
    step bigint NOT NULL, document bigint NOT NULL, position bigint NOT NULL, first_token bigint NOT NULL,
    run_id integer NOT NULL, attempt integer NOT NULL, number integer NOT NULL, sample_row integer NOT NULL,
    epoch integer NOT NULL, unit_id integer NOT NULL, num_tokens integer NOT NULL, segment_id integer NOT NULL
    {spans_key}
) {spans_options};
{spans_index}
CREATE INDEX spans_document ON spans (segment_id, document);
CREATE TABLE rejects (
    run_id integer NOT NULL REFERENCES runs, unit_id integer NOT NULL REFERENCES units, position bigint NOT NULL,
    rule text NOT NULL, reason text NOT NULL, PRIMARY KEY (run_id, unit_id, position, rule)
);
CREATE TABLE checkpoints (
    run_id integer NOT NULL REFERENCES runs, step bigint NOT NULL, location text NOT NULL, reason text NOT NULL,
    saved double precision NOT NULL, PRIMARY KEY (run_id, step)
);
CREATE VIEW epochs AS
    SELECT run_id, source_id, epoch, min(step) AS first_step, max(step) AS last_step, sum(samples) AS samples,
        sum(s.spans) AS spans, sum(s.tokens) AS tokens
    FROM step_sources AS s JOIN steps USING (run_id, step, attempt)
    WHERE is_current GROUP BY run_id, source_id, epoch
"""

LEDGER = SqlSchema(
    noun="the ledger",
    setting="ledger.dsn",
    version_table="schema_version",
    migrations=(_FIRST,),
    sqlite=_SQLITE,
    postgres=_POSTGRES,
    wide=frozenset({"step", "document", "position", "first_token", "tokens"}),
)
"""The tables of the ledger."""
