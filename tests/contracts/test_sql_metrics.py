"""The trackers on SQL databases keep the port's promises, and their own."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest

from holdfast.adapters.monitor.sql_metrics import METRICS, SqlTracker
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import TrackerContract, described

VALUES = "SELECT step, name, value FROM {}metrics"
NOTES = "SELECT step, text FROM {}metric_notes ORDER BY note_id"


def given_name(stored):
    """Return the name of a metric as it was given."""
    return stored.replace("\\\\", "\0\0").replace("\\u0000", "\0").replace("\0\0", "\\")


class SqlContract(TrackerContract):
    is_prompt = True

    def recorded(self, monitor, folder):
        rows = self.answer(folder, VALUES)
        return [(step, {given_name(name): math.nan if value is None else value}) for step, name, value in rows]

    def noted(self, tracker, folder):
        return self.answer(folder, NOTES)

    def _expected(self, records):
        last = {(step, name): value for step, metrics in records for name, value in metrics.items()}
        return super()._expected([(step, {name: value}) for (step, name), value in last.items()])

    def test_a_run_has_one_row(self, tmp_path):
        """Every start of a run updates its row: its name, settings and state, but not its first start."""
        for state in ("stopped", "finished"):
            tracker = self.open_monitor(tmp_path)
            found = self.answer(tmp_path, "SELECT state, ended FROM {}metric_runs")
            assert found == [("running", None)]
            tracker.finish(EndState(state))
            tracker.close()
            rows = self.answer(tmp_path, "SELECT run, name, num_ranks, state, ended >= began FROM {}metric_runs")
            run = described(tmp_path)
            assert rows == [(run.run_id, "a run", 2, state, True)]

    def test_a_later_value_of_a_step_replaces_the_first(self, tmp_path):
        """A step has one value of each metric, also across transactions."""
        tracker = self.open_monitor(tmp_path)
        for tokens in (1.0, 2.0):
            tracker.record(5, {"tokens": tokens})
            tracker.flush()
        tracker.record(5, {"tokens": 3.0})
        tracker.record(5, {"tokens": 4.0, "eval_loss": 1.0})
        tracker.close()
        assert sorted(self.answer(tmp_path, VALUES)) == [(5, "eval_loss", 1.0), (5, "tokens", 4.0)]

    def test_texts_that_no_database_stores(self, tmp_path):
        """Lone surrogates and NUL in names, settings and notes are replaced, and different names stay different."""
        tracker = self.new_tracker(tmp_path)
        run = described(tmp_path)
        changes = {"name": "a\ud800\0run", "settings": {"a\0": "\udfff"}}
        tracker.begin(type(run)(run_id=run.run_id, folder=tmp_path, **changes))
        tracker.record(1, {"a\0": 1.0, "a\\u0000": 2.0, "a\ud800": 3.0, "a\\": 4.0, "ä\\": 5.0})
        tracker.note(1, NoteKind.SAMPLE, "a\ud800b\0c")
        tracker.close()
        found = {name: value for _, name, value in self.answer(tmp_path, VALUES)}
        assert found == {"a\\u0000": 1.0, "a\\\\u0000": 2.0, "a\\ud800": 3.0, "a\\\\": 4.0, "ä\\\\": 5.0}
        assert self.answer(tmp_path, NOTES) == [(1, "a\ufffdbc")]
        assert self.answer(tmp_path, "SELECT name FROM {}metric_runs") == [("a\ufffd\ufffdrun",)]

    def test_runs_share_a_database(self, tmp_path):
        """A run rewinds its own steps, not those of another run."""
        trackers = []
        for identity in ("one", "two"):
            tracker = self.new_tracker(tmp_path)
            run = described(tmp_path)
            tracker.begin(type(run)(run_id=identity, name=identity, folder=tmp_path))
            tracker.record(1, {"loss": 1.0})
            tracker.record(2, {"loss": 2.0})
            tracker.flush()
            trackers.append(tracker)
        trackers[0].rewind(1)
        for tracker in trackers:
            tracker.close()
        found = self.answer(tmp_path, "SELECT run, step FROM {}metrics ORDER BY run, step")
        assert found == [("one", 1), ("two", 1), ("two", 2)]


class TestSqliteTracker(SqlContract):
    def new_tracker(self, folder):
        return SqlTracker(SqliteDatabase(folder / "metrics.sqlite", METRICS, connects_at_once=False))

    def answer(self, folder, query):
        path = folder / "metrics.sqlite"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(query.format("")).fetchall()


class TestPostgresTracker(SqlContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres):
        type(self).server, type(self).databases = postgres, {}

    def new_tracker(self, folder):
        from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase

        if folder not in self.databases:
            self.databases[folder] = self.server.new_database()
        return SqlTracker(PostgresDatabase(self.databases[folder], METRICS, connects_at_once=False))

    def answer(self, folder, query):
        import psycopg

        with psycopg.connect(self.databases[folder], autocommit=True) as connection:
            if connection.execute("SELECT to_regnamespace('holdfast') IS NULL").fetchone()[0]:
                return []
            return connection.execute(query.format("holdfast.")).fetchall()
