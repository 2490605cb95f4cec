"""The ledger: a record of the documents that each step has read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag

from holdfast.configs.sections.base import PLUGIN, Dsn, PluginSettings, Section, Text, by_kind


class NoLedgerSettings(Section):
    """No ledger; the documents of a step are computed when they are asked for."""

    kind: Literal["none"] = Field(default="none", description="No ledger.")


class SqliteLedgerSettings(Section):
    """A ledger in the run folder."""

    kind: Literal["sqlite"] = Field(default="sqlite", description="The file ledger.sqlite in the run folder.")


class PostgresLedgerSettings(Section):
    """A ledger on a PostgreSQL server, which many runs may share."""

    kind: Literal["postgres"] = Field(default="postgres", description="A database on a PostgreSQL server.")
    dsn: Dsn = Field(
        description="Connection string such as postgresql://user@host:5432/database, or env:NAME for a variable with "
        "it, which keeps a password out of the settings."
    )


class MemoryLedgerSettings(Section):
    """A ledger in the memory of the process; it is lost when the process ends."""

    kind: Literal["memory"] = Field(
        default="memory", description="The memory of this process; nothing remains after its end."
    )


def _named(ledger: object) -> object:
    return {"kind": ledger} if isinstance(ledger, str) else ledger


_Ledger = Annotated[
    Annotated[NoLedgerSettings, Tag("none")]
    | Annotated[SqliteLedgerSettings, Tag("sqlite")]
    | Annotated[PostgresLedgerSettings, Tag("postgres")]
    | Annotated[MemoryLedgerSettings, Tag("memory")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("none", "sqlite", "postgres", "memory"),
]
LedgerSettings = Annotated[_Ledger, BeforeValidator(_named, json_schema_input_type=Text | _Ledger)]
