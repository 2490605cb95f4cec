"""The schema of the ledger in SQL."""

from __future__ import annotations

from holdfast.adapters.shared.sql.sql_schema import SqlSchema

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
