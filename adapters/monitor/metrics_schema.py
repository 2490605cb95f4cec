"""The schema of metrics in SQL."""

from __future__ import annotations

from holdfast.adapters.shared.sql.sql_schema import SqlSchema

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
