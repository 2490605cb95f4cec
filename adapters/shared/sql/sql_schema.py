"""The tables of an adapter in a SQL database, as numbered migrations for each kind of database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
        found = []
        for number, text in enumerate(self.migrations[version:], version + 1):
            statements = [part.strip() for part in text.format(**dialect).split(";")]
            found.append((number, [statement for statement in statements if statement]))
        return found


def replacing(key: Sequence[str], columns: Iterable[str]) -> str:
    """Return the end of an insertion of ``columns`` that replaces the values of a row with the same ``key``."""
    values = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
    return f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {values}"
