"""The operations that adapters need of a SQL database."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray


class Database(Protocol):
    """A SQL database with the tables of one ``SqlSchema``; its errors are ``StateError``."""

    locking: str
    """The end of a query that locks its rows until the end of the transaction."""

    def transaction(self) -> AbstractContextManager[None]:
        """Connect if need be, and make the statements within it as a whole or not at all."""
        ...

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of ``query``, in which question marks stand for ``values``."""
        ...

    def many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        """Execute ``statement`` once for each of ``values``."""
        ...

    def load(self, table: str, columns: Mapping[str, NDArray[np.int64]]) -> None:
        """Add rows to ``table``: one int64 array for each column."""
        ...

    def merge(self, table: str, key: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to ``table``, one int64 or float64 array for each column, in place of those with the same ``key``.

        No two of the rows have the same key.
        """
        ...

    def close(self) -> None:
        """Close the connection; a later transaction opens it again."""
        ...


@dataclass(frozen=True, slots=True)
class SqlSchema:
    """The changes of some tables in their order: the first of ``migrations`` makes version 1.

    ``sqlite`` and ``postgres`` are the parts of the migrations that differ between the databases. The version is kept
    in ``version_table``, so that several schemas fit into one database. ``wide`` names the integer columns of 8 bytes;
    the others have 4. ``noun`` and ``setting`` name the tables and the setting of the connection string in errors.
    """

    noun: str
    setting: str
    version_table: str
    migrations: Sequence[str]
    sqlite: Mapping[str, str]
    postgres: Mapping[str, str]
    wide: frozenset[str] = frozenset()

    def pending(self, version: int, dialect: Mapping[str, str], place: str) -> list[tuple[int, list[str]]]:
        """Return the versions after ``version`` with their statements; ``place`` names the database in errors.

        Raises ``ConfigurationError`` if ``version`` is newer than all migrations.
        """
        if version > len(self.migrations):
            msg = (
                f"{self.noun} {place} has version {version} of the schema, but this Holdfast knows versions up to "
                f"{len(self.migrations)}: upgrade Holdfast, or choose another place for {self.noun}"
            )
            raise ConfigurationError(msg)
        rows = []
        for number, text in enumerate(self.migrations[version:], version + 1):
            statements = [part.strip() for part in text.format(**dialect).split(";")]
            rows.append((number, [statement for statement in statements if statement]))
        return rows


def replacing(key: Sequence[str], columns: Iterable[str]) -> str:
    """Return the end of an insertion of ``columns`` that replaces the values of a row with the same ``key``."""
    values = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {values}"


def storable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable_json(details: Mapping[str, object]) -> str:
    """Return ``details`` as JSON with U+FFFD in place of NUL and lone surrogates; raises ``ValueError`` for NaN."""
    text = json.dumps(details, allow_nan=False, ensure_ascii=False)
    return storable(text).replace("\\u0000", "\\ufffd")


def storable_name(name: str) -> str:
    r"""Return ``name`` with ``\uXXXX`` for NUL and lone surrogates, and two for one backslash: names stay different."""
    if name.isascii() and "\\" not in name and "\0" not in name:
        return name
    escaped = name.replace("\\", "\\\\")
    return "".join(f"\\u{ord(sign):04x}" if sign == "\0" or "\ud800" <= sign <= "\udfff" else sign for sign in escaped)
