"""A SQL database on a PostgreSQL server, with psycopg."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np
import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.adapters.shared.sql.database import replacing
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.adapters.shared.sql.database import SqlSchema

_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,
    "application_name": "holdfast",
}
_MIGRATING = 0x686F6C64  # the number of a lock that one process at a time holds
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_ARRAYS = {"i": "bigint[]", "f": "double precision[]"}  # by the kind of a dtype


@final
class PostgresDatabase:
    """The tables of ``schema`` in the schema ``holdfast`` of the database that ``dsn`` names.

    A lost connection is opened again by the next transaction. With ``connects_at_once`` the constructor raises
    ``StateError`` if the server cannot be reached. Raises ``ConfigurationError`` for a connection string that cannot
    be read, and if the schema is newer than this version of Holdfast. No error shows the password.
    """

    locking = " FOR UPDATE"

    def __init__(self, dsn: str, schema: SqlSchema, *, connects_at_once: bool = True) -> None:
        self._schema = schema
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.Error:
            msg = (
                f"{schema.setting} is no connection string of PostgreSQL such as postgresql://user@host:5432/database "
                "(what was given is not shown, as it may hold a password)"
            )
            raise ConfigurationError(msg) from None
        self._options: dict[str, Any] = _CONNECTION | given
        self._secrets = [str(given[name]) for name in ("password", "sslpassword") if given.get(name)]
        host, port = given.get("host") or given.get("hostaddr") or "the local socket", given.get("port") or 5432
        self._place = f"in the database {given.get('dbname') or given.get('user') or ''} at {host}, port {port},"
        self._open: psycopg.Connection[tuple[Any, ...]] | None = None
        if connects_at_once:
            with self.transaction():
                pass

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the statements within it as a whole or not at all."""
        try:
            connection = self._connect()
            with connection.transaction():
                connection.execute("SET LOCAL search_path TO holdfast")
                yield
        except psycopg.Error as error:
            self.close()
            msg = f"{self._schema.noun} {self._place} cannot be used: {self._reason(error)}"
            raise StateError(msg) from None

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of ``query``."""
        return self._connect().execute(_with_marks(query), values).fetchall()

    def many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """Execute ``statement`` once for each of ``values``."""
        if rows := list(values):
            with self._connect().cursor() as cursor:
                cursor.executemany(_with_marks(statement), rows)

    def load(self, table: str, columns: Mapping[str, NDArray[np.int64]]) -> None:
        """Add rows to ``table`` by a binary COPY."""
        rows = _binary_rows(columns, self._schema.wide)
        with (
            self._connect().cursor() as cursor,
            cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)".encode()) as copy,
        ):
            copy.write(_COPY_HEADER + rows.tobytes() + _COPY_END)

    def merge(self, table: str, key: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to ``table``, in place of those with the same ``key``, by one statement."""
        arrays = ", ".join(f"?::{_ARRAYS[column.dtype.kind]}" for column in columns.values())
        statement = f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays}) "  # noqa: S608
        values = [column.tolist() for column in columns.values()]
        self._connect().execute(_with_marks(statement + replacing(key, columns)), values)

    def close(self) -> None:
        """Close the connection."""
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._open is None:
            connection = psycopg.connect(**self._options, autocommit=True, prepare_threshold=None)
            try:
                self._migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._open = connection
        return self._open

    def _migrate(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
            if connection.execute("SELECT to_regnamespace('holdfast') IS NULL").fetchall()[0][0]:
                connection.execute("CREATE SCHEMA holdfast")
            connection.execute("SET LOCAL search_path TO holdfast")
            table = self._schema.version_table
            if connection.execute("SELECT to_regclass(%s) IS NULL", (table,)).fetchall()[0][0]:
                connection.execute(f"CREATE TABLE {table} (version integer NOT NULL)".encode())
            newest = f"SELECT coalesce(max(version), 0) FROM {table}"  # noqa: S608  a name of ours
            ((version,),) = connection.execute(newest.encode()).fetchall()
            for number, statements in self._schema.pending(version, self._schema.postgres, self._place):
                for statement in statements:
                    connection.execute(statement.encode())
                connection.execute(f"INSERT INTO {table} VALUES (%s)".encode(), (number,))  # noqa: S608

    def _reason(self, error: psycopg.Error) -> str:
        """Return the reason on one line, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _with_marks(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _binary_rows(columns: Mapping[str, NDArray[np.int64]], wide: frozenset[str]) -> NDArray[Any]:
    """Return the rows as PostgreSQL's binary format has them: the number of fields, then each length and value.

    The columns in ``wide`` have 8 bytes, the others 4.
    """
    kinds: list[tuple[str, str]] = [("num_fields", ">i2")]
    for name in columns:
        kinds += [(f"{name} length", ">i4"), (name, ">i8" if name in wide else ">i4")]
    rows = np.empty(len(next(iter(columns.values()))), np.dtype(kinds))
    rows["num_fields"] = len(columns)
    for name, values in columns.items():
        rows[f"{name} length"] = 8 if name in wide else 4
        rows[name] = values
    return rows
