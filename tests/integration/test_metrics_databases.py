"""Databases of metrics that are away, busy, newer or shared with the ledger."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.monitor.sql_metrics import METRICS, SqlTracker
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.attach.monitors import postgres_tracker, sqlite_tracker
from holdfast.configs.sections.monitors import PostgresMonitorSettings, SqliteMonitorSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.testing.ledger import spans_in, steps_at
from holdfast.ports.testing.monitor import described

ENCODED = "correct%20horse"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class CountingDatabase:
    """A database that stores nothing, counts transactions and rows, and fails while ``is_away``."""

    locking = ""

    def __init__(self):
        self.transactions, self.rows_of_values, self.is_away = 0, 0, False

    @contextmanager
    def transaction(self):
        if self.is_away:
            msg = "away"
            raise StateError(msg)
        self.transactions += 1
        yield

    def rows(self, query, *values):
        return [(f"m{number}", number) for number in range(8)] if "metric_series" in query else [(1,)]

    def many(self, statement, values):
        list(values)

    def merge(self, table, key, columns):
        self.rows_of_values += len(columns["step"])

    def close(self):
        pass


def counted(clock):
    database = CountingDatabase()
    tracker = SqlTracker(database, clock)
    tracker.begin(described(Path()))
    database.transactions = 0
    return database, tracker


def of_postgres(dsn):
    return postgres_tracker(PostgresMonitorSettings(dsn=dsn))


def steps_in(dsn):
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        return [step for (step,) in connection.execute("SELECT step FROM holdfast.metrics ORDER BY step").fetchall()]


def test_records_are_stored_together():
    """Steps that come fast share a transaction of 10,000 values, or of two seconds."""
    clock = Clock()
    database, tracker = counted(clock)
    for step in range(10_000):
        tracker.record(step, {f"m{number}": 1.0 for number in range(8)})
    assert (database.transactions, database.rows_of_values) == (8, 70_008)  # the first step is stored at once
    clock.now = 2.5
    tracker.record(10_000, {"m0": 1.0})
    assert (database.transactions, database.rows_of_values) == (9, 80_001)


def test_a_database_that_is_away_is_not_asked_at_each_record():
    """Values wait while the database is away, it is asked every ten seconds, and they are stored when it is back."""
    clock = Clock()
    database, tracker = counted(clock)
    database.is_away = True
    errors = 0
    for step in range(1, 31):
        clock.now = float(step)
        try:
            tracker.record(step, {"m0": 1.0})
        except StateError:
            errors += 1
    assert errors == 3
    database.is_away = False
    tracker.flush()
    assert database.rows_of_values == 30


def test_values_do_not_wait_without_bound():
    """Once 200,000 values wait for a database that is away, they are dropped with an error, and later ones are kept."""
    database, tracker = counted(Clock())
    database.is_away = True
    dropped = []
    for step in range(30_000):
        try:
            tracker.record(step, {f"m{number}": 1.0 for number in range(8)})
        except StateError as error:
            dropped.append(str(error))
    assert [("dropped" in sentence) for sentence in dropped] == [False, True]
    database.is_away = False
    tracker.flush()
    assert database.rows_of_values == 8 * 30_000 - 200_008


def test_a_server_that_was_away_gets_each_step_once(postgres, tmp_path):
    """A record fails in one sentence while the server is away, and what it held is stored when it is back."""
    dsn = postgres.new_database()
    tracker = of_postgres(dsn)
    with closing(tracker):
        tracker.begin(described(tmp_path))
        tracker.record(1, {"loss": 1.0})
        tracker.flush()
        postgres.stop()
        try:
            tracker.record(2, {"loss": 2.0})
            with pytest.raises(StateError, match="the record of metrics in the database ledger at") as error:
                tracker.flush()
        finally:
            postgres.start()
        assert "\n" not in str(error.value)
        tracker.record(3, {"loss": 3.0})
        tracker.flush()
        assert steps_in(dsn) == [1, 2, 3]


def test_a_tracker_begins_when_the_server_is_there(postgres, tmp_path):
    """The tracker is built while the server is away, ``begin`` raises, and a later ``begin`` succeeds."""
    dsn = postgres.new_database()
    postgres.stop()
    try:
        tracker = of_postgres(dsn)
        with pytest.raises(StateError, match="cannot be used"):
            tracker.begin(described(tmp_path))
    finally:
        postgres.start()
    with closing(tracker):
        tracker.begin(described(tmp_path))
        tracker.record(1, {"loss": 1.0})
    assert steps_in(dsn) == [1]


def test_a_server_that_never_answers_is_given_up(tmp_path):
    """``begin`` ends with an error after the connection's time limit if a socket accepts and says nothing."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        tracker = of_postgres(f"postgresql://me@127.0.0.1:{hole.getsockname()[1]}/data?connect_timeout=2")
        with closing(tracker), pytest.raises(StateError, match="timeout"):
            tracker.begin(described(tmp_path))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_ledger_and_metrics_share_a_database(kind, tmp_path, request):
    """Two threads record steps in the ledger and metrics in the same database, and both have all of them."""
    if kind == "sqlite":
        ledger = SqlLedger(SqliteDatabase(tmp_path / "one.sqlite", LEDGER))
        tracker = sqlite_tracker(SqliteMonitorSettings(path=tmp_path / "one.sqlite"), RunLayout(tmp_path))
    else:
        from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase

        dsn = request.getfixturevalue("postgres").new_database()
        ledger, tracker = SqlLedger(PostgresDatabase(dsn, LEDGER)), of_postgres(dsn)
    ledger.begin_run("run", {}, 1.0)
    tracker.begin(described(tmp_path))

    def record_steps():
        for step in range(1, 41):
            ledger.record("run", steps_at(step, step + 1), spans_in(steps_at(step, step + 1)))

    thread = threading.Thread(target=record_steps)
    thread.start()
    for step in range(1, 41):
        tracker.record(step, {"loss": float(step)})
        tracker.flush()
    thread.join(60)
    with closing(ledger), closing(tracker):
        assert ledger.steps("run").step.tolist() == list(range(1, 41))
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "one.sqlite")) as connection:
            found = [step for (step,) in connection.execute("SELECT step FROM metrics ORDER BY step")]
    else:
        found = steps_in(dsn)
    assert found == list(range(1, 41))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_newer_schema_is_refused(kind, tmp_path, request):
    """Tables that a newer version has changed are refused by name, with both versions."""
    newer = len(METRICS.migrations) + 1
    if kind == "sqlite":
        build = lambda: sqlite_tracker(SqliteMonitorSettings(), RunLayout(tmp_path))  # noqa: E731
        connect = lambda: closing(sqlite3.connect(tmp_path / "metrics.sqlite", isolation_level=None))  # noqa: E731
    else:
        import psycopg

        dsn = request.getfixturevalue("postgres").new_database()
        build = lambda: of_postgres(dsn)  # noqa: E731
        connect = lambda: psycopg.connect(dsn, autocommit=True, options="-c search_path=holdfast")  # noqa: E731
    with closing(build()) as tracker:
        tracker.begin(described(tmp_path))
    with connect() as connection:
        connection.execute(f"INSERT INTO metrics_version VALUES ({newer})")
    with closing(build()) as tracker, pytest.raises(ConfigurationError) as error:
        tracker.begin(described(tmp_path))
    assert f"has version {newer} of the schema, but this Holdfast knows versions up to {newer - 1}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        (f"postgresql://me:{ENCODED}@127.0.0.1:9/data?nonsense={ENCODED}", "no connection string of PostgreSQL"),
        ("env:NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE, which is not set"),
    ],
)
def test_a_connection_string_that_cannot_be_read_is_refused(dsn, reason):
    """The run is refused at its start in a sentence that names the monitor and shows no password."""
    with pytest.raises(ConfigurationError, match=r'the dsn of the monitor "postgres"') as error:
        of_postgres(dsn)
    assert reason in str(error.value)
    assert "horse" not in str(error.value)


def test_the_password_of_a_monitor_is_not_repeated():
    """A connection string of another form is refused by the settings, which do not show it."""
    with pytest.raises(ConfigurationError, match="monitors") as error:
        load_settings([], ["monitors=[{kind: postgres, dsn: 'mysql://me:horse@here/db'}]"], {})
    assert "horse" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_hundred_thousand_records_take_seconds(kind, tmp_path, request):
    """100,000 records of eight metrics are stored within a minute on a busy machine."""
    if kind == "sqlite":
        tracker = sqlite_tracker(SqliteMonitorSettings(), RunLayout(tmp_path))
    else:
        tracker = of_postgres(request.getfixturevalue("postgres").new_database())
    figures = {f"figure_{number}": float(number) for number in range(8)}
    began = time.perf_counter()
    with closing(tracker):
        tracker.begin(described(tmp_path))
        for step in range(100_000):
            tracker.record(step, figures)
        tracker.flush()
        taken = time.perf_counter() - began
        tracker.rewind(50_000)
    assert taken < 60
