"""The databases of a ledger refuse what they cannot use, in one sentence without secrets."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import pytest

from holdfast.adapters.ledger.sql import LEDGER
from holdfast.bootstrap.stages.attach.ledger import open_ledger
from holdfast.configs.sections.ledger import PostgresLedgerSettings, SqliteLedgerSettings
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.ledger import plain, spans_in, spans_of, steps_at

REPORTS: list[str] = []
SECRET = "correct horse"
ENCODED = "correct%20horse"


def opened(section, folder):
    return open_ledger(section, folder, REPORTS.append)


def _sentence(error):
    message = str(error.value)
    assert "\n" not in message
    assert "horse" not in message
    return message


def test_no_ledger_is_the_default(tmp_path):
    """Without the setting no ledger is opened, and nothing is written."""
    assert opened(TrainSettings().ledger, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_the_setting_opens_its_kind(tmp_path, kind):
    """A ledger that the setting names by its kind alone records and answers."""
    section = load_settings([], [f"ledger={kind}"], {}).settings.ledger
    with closing(opened(section, tmp_path)) as ledger:
        ledger.begin_run("run", {}, 1.0)
        ledger.record("run", steps_at(1, 4), spans_in(steps_at(1, 4)))
        ledger.flush()
        assert plain(ledger.documents_in("run", 2)) == plain(spans_of(4, 8))
    assert (tmp_path / "ledger.sqlite").exists() is (kind == "sqlite")


def test_a_password_opens_the_database_and_stays_hidden(tmp_path, postgres, monkeypatch):
    """A right password from a variable is accepted; a wrong one is refused in a sentence that does not show it."""
    name = postgres.new_database().rpartition("/")[2]
    monkeypatch.setenv("LEDGER_DSN", postgres.dsn(name, f"guarded:{ENCODED}"))
    with closing(opened(PostgresLedgerSettings(dsn="env:LEDGER_DSN"), tmp_path / "one")) as ledger:
        ledger.begin_run("run", {}, 1.0)
        ledger.flush()
    wrong = postgres.dsn(name, f"guarded:{ENCODED}s")
    with pytest.raises(ConfigurationError) as error:
        opened(PostgresLedgerSettings(dsn=wrong), tmp_path / "two")
    assert "password authentication failed" in _sentence(error)


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        (f"postgresql://me:{ENCODED}@127.0.0.1:9/data", "Connection refused"),
        (f"postgresql://me:{ENCODED}@127.0.0.1:9/data?nonsense={ENCODED}", "no connection string of PostgreSQL"),
        ("env:NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE, which is not set"),
    ],
)
def test_a_connection_string_that_refuses_is_one_sentence(tmp_path, dsn, reason):
    """A new run is refused if its database cannot be reached, with the reason and without the password."""
    with pytest.raises(ConfigurationError) as error:
        opened(PostgresLedgerSettings(dsn=dsn), tmp_path)
    assert reason in _sentence(error)


@pytest.mark.parametrize("dsn", ["host=here password=horse", "mysql://me:horse@here/db", "env:", "env:a b"])
def test_a_setting_that_is_no_connection_string_is_not_repeated(dsn):
    """A value of another form is refused by the settings, which do not show it."""
    with pytest.raises(ConfigurationError, match=r"ledger\.dsn") as error:
        load_settings([], ["ledger.kind=postgres", f"ledger.dsn={dsn}"], {})
    _sentence(error)


def test_a_run_that_used_the_database_starts_without_it(tmp_path, postgres):
    """A resumed run whose server is away starts, and its steps follow when the server is back."""
    section = PostgresLedgerSettings(dsn=postgres.new_database())
    with closing(opened(section, tmp_path)) as ledger:
        ledger.begin_run("run", {}, 1.0)
        ledger.flush()
    postgres.stop()
    try:
        ledger = opened(section, tmp_path)
        ledger.record("run", steps_at(1, 4), spans_in(steps_at(1, 4)))
    finally:
        postgres.start()
    with closing(ledger):
        ledger.flush()
        assert ledger.steps("run").step.tolist() == [1, 2, 3]


def test_a_newer_schema_is_refused(tmp_path, postgres):
    """A database that a newer version has changed is refused by name, with both versions."""
    import psycopg

    newer = len(LEDGER.migrations) + 1
    dsn = postgres.new_database()
    for section in (PostgresLedgerSettings(dsn=dsn), SqliteLedgerSettings()):
        opened(section, tmp_path).close()
    with psycopg.connect(dsn) as connection:
        connection.execute(f"INSERT INTO holdfast.schema_version VALUES ({newer})")
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection, connection:
        connection.execute(f"INSERT INTO schema_version VALUES ({newer})")
    for section, place in ((PostgresLedgerSettings(dsn=dsn), dsn.rpartition("/")[2]), (SqliteLedgerSettings(), "")):
        with pytest.raises(ConfigurationError) as error:
            opened(section, tmp_path)
        assert f"has version {newer} of the schema" in _sentence(error)
        assert place in _sentence(error)


def test_two_runs_share_a_database(tmp_path, postgres):
    """Runs of different folders record in one database, and a document is found in the steps of both."""
    section = PostgresLedgerSettings(dsn=postgres.new_database())
    for run in ("one", "two"):
        with closing(opened(section, tmp_path / run)) as ledger:
            ledger.begin_run(run, {}, 1.0)
            ledger.record(run, steps_at(1, 3), spans_in(steps_at(1, 3)))
            ledger.flush()
            found = ledger.steps_with(int(spans_of(0, 1).document[0]))
    assert [(taken.run, taken.step) for taken in found] == [("one", 1), ("two", 1)]


def test_an_unknown_kind_names_the_kinds_there_are(tmp_path):
    """A kind that no package offers is refused with the built-in ones."""
    with pytest.raises(ConfigurationError, match="sqlite"):
        opened(SimpleNamespace(kind="oracle", options={}), tmp_path)
