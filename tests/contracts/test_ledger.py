"""Every ledger keeps the port's promises, and each database its own."""

from __future__ import annotations

import pytest

from holdfast.adapters.ledger.memory import MemoryLedger
from holdfast.adapters.ledger.spilling import SpillingLedger
from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from holdfast.ports.testing.ledger import LedgerContract


class TestMemoryLedger(LedgerContract):
    outlives = False

    def open_ledger(self, place):
        return MemoryLedger()


class TestSqliteLedger(LedgerContract):
    def open_ledger(self, place):
        return SqlLedger(SqliteDatabase(place / "ledger.sqlite", LEDGER))


class TestPostgresLedger(LedgerContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres):
        type(self).server, type(self).databases = postgres, {}

    def open_ledger(self, place):
        from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase

        if place not in self.databases:
            self.databases[place] = self.server.new_database()
        return SqlLedger(PostgresDatabase(self.databases[place], LEDGER))


class TestSpillingLedger(LedgerContract):
    def open_ledger(self, place):
        return SpillingLedger(
            SqlLedger(SqliteDatabase(place / "ledger.sqlite", LEDGER)), place / "ledger-calls", report=pytest.fail
        )
