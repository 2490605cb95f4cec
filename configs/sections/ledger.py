"""The ledger: a record of the documents that each step has read."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, Tag, field_validator, model_validator

from holdfast.configs.sections.base import PLUGIN, Dsn, Folder, PluginSettings, Section, Text, TokenPlace, by_kind


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


class LineageSettings(Section):
    """The receiver of OpenLineage events: a server or a file."""

    url: Text | None = Field(
        default=None, description="Server that receives OpenLineage events, such as http://marquez:5000; null for none."
    )
    file: Folder | None = Field(
        default=None, description="File to which OpenLineage events are appended, one a line; null for none."
    )
    token_from: TokenPlace | None = Field(
        default=None, description="Place of the server's bearer token: env:NAME or file:PATH; null sends none."
    )

    @field_validator("url")
    @classmethod
    def _is_of_a_server(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            msg = "must begin with http:// or https://"
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _has_one_receiver(self) -> Self:
        if (self.url is None) == (self.file is None):
            msg = "needs either url or file"
            raise ValueError(msg)
        return self
