"""An outside adapter: documents out of an SQLite table, put in place of the built-in data source.

    python examples/sqlite_data_source.py DATABASE FOLDER [key.path=value ...]

A package that declares the entry point

    [project.entry-points."holdfast.data_source"]
    sqlite = "sqlite_data_source:SqliteDataSource"

makes the same class available as ``data.kind=sqlite data.options.path=texts.db``.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, final

from holdfast import build, load_settings
from holdfast.domain.errors import DataError
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import Document, Rejected, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROWS = "SELECT id, text FROM documents WHERE source = ? AND id > ? ORDER BY id"


@final
class SqliteDataSource(BasicDataSource):
    """Reads the column ``text`` of the table ``documents``; each ``source`` is a unit, a position the last id read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def units(self) -> Sequence[Unit]:
        """Return one unit for each value of the column ``source``."""
        query = "SELECT source, sum(length(CAST(text AS BLOB))) FROM documents GROUP BY source ORDER BY source"
        units = [Unit(name, size or 0, self._hash(name)) for name, size in self._rows(query)]
        if not units:
            msg = f"the table documents in {self._path} has no row"
            raise DataError(msg)
        return units

    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        """Yield the documents of ``unit`` behind the id ``start``."""
        before = start or 0
        for key, text in self._rows(_ROWS, unit.name, before):
            if isinstance(text, str):
                yield Document(text, before, key)
            else:
                reason = f"row {key} behind position {before} of {unit.name} in {self._path} holds no text: repair it"
                yield Rejected(reason, before, key)
            before = key

    def fingerprint(self) -> str:
        """Return a hash over all units."""
        return blake2b(repr(self.units()).encode(), digest_size=16).hexdigest()

    def _hash(self, source: str) -> str:
        digest = blake2b(digest_size=16)
        for row in self._rows(_ROWS, source, 0):
            digest.update(repr(row).encode())
        return digest.hexdigest()

    def _rows(self, query: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
                yield from database.execute(query, values)
        except sqlite3.Error as error:
            msg = f"{self._path} cannot be read: {error}"
            raise DataError(msg) from error


def main(database: str, folder: str, *overrides: str) -> None:
    """Train on the table."""
    settings = load_settings([], [f"run.dir={folder}", *overrides], {}).settings
    progress = build(settings, data_source=SqliteDataSource(database)).run()
    print(f"trained {progress.step} steps, {progress.tokens:,} tokens")


if __name__ == "__main__":
    if len(sys.argv) <= 2:
        print(f"usage: python {sys.argv[0]} DATABASE FOLDER [key.path=value ...]", file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
