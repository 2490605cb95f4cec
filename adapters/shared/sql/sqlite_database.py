"""A SQL database in a file, with SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.sql.database import replacing
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.adapters.shared.sql.database import SqlSchema

_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "foreign_keys=ON")
_PATIENCE_SECONDS = 30.0


@final
class SqliteDatabase:
    """The tables of ``schema`` in the file ``path``, which is made if it is missing; other processes may read it.

    A transaction is durable when it ends, after a power cut too. With ``connects_at_once`` the constructor raises
    ``StateError`` if the file cannot be used. Raises ``ConfigurationError`` if the schema is newer than this version of
    Holdfast.
    """

    locking = ""

    def __init__(self, path: Path, schema: SqlSchema, *, connects_at_once: bool = True) -> None:
        self._path = path
        self._schema = schema
        self._open: sqlite3.Connection | None = None
        if connects_at_once:
            with self.transaction():
                pass

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the statements within it as a whole or not at all."""
        try:
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        except (sqlite3.Error, OSError) as error:
            self.close()
            msg = (
                f"{self._schema.noun} {self._path} cannot be used ({error}): end the program that holds it locked, "
                "or move the file away to begin a new one"
            )
            raise StateError(msg) from error

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of ``query``."""
        return self._connect().execute(query, values).fetchall()

    def many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """Execute ``statement`` once for each of ``values``."""
        self._connect().executemany(statement, values)

    def load(self, table: str, columns: Mapping[str, NDArray[np.int64]]) -> None:
        """Add rows to ``table``."""
        marks = ", ".join("?" for _ in columns)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        self.many(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608  names of ours

    def merge(self, table: str, key: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to ``table``, in place of those with the same ``key``; NaN is stored as NULL."""
        marks = ", ".join("?" for _ in columns)
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) "  # noqa: S608  names of ours
        self.many(statement + replacing(key, columns), rows)

    def close(self) -> None:
        """Close the file."""
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        if self._open is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self._path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in _PRAGMAS:
                    connection.execute(f"PRAGMA {pragma}")
                self._migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._open = connection
        return self._open

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        table = self._schema.version_table
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (version integer NOT NULL)")
        (version,) = connection.execute(f"SELECT coalesce(max(version), 0) FROM {table}").fetchone()  # noqa: S608
        for number, statements in self._schema.pending(version, self._schema.sqlite, str(self._path)):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"INSERT INTO {table} VALUES (?)", (number,))  # noqa: S608  a name of ours
        connection.commit()
