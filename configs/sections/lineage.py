"""Lineage events about the data of a run."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from holdfast.configs.sections.base import Folder, KeyPlace, Section, Text


class LineageSettings(Section):
    """The receiver of OpenLineage events: a server or a file."""

    url: Text | None = Field(
        default=None, description="Server that receives OpenLineage events, such as http://marquez:5000; null for none."
    )
    file: Folder | None = Field(
        default=None, description="File to which OpenLineage events are appended, one a line; null for none."
    )
    token_from: KeyPlace | None = Field(
        default=None, description="Place of the server's bearer token: env:NAME or file:PATH; null sends none."
    )

    @field_validator("url")
    @classmethod
    def _is_of_a_server(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            msg = "must begin with http:// or https://"
            raise ValueError(msg)
        return url

    @field_validator("token_from")
    @classmethod
    def _is_in_reach(cls, place: str | None) -> str | None:
        if place is not None and not place.startswith(("env:", "file:")):
            msg = "must be env:NAME or file:PATH"
            raise ValueError(msg)
        return place

    @model_validator(mode="after")
    def _has_one_receiver(self) -> Self:
        if (self.url is None) == (self.file is None):
            msg = "needs either url or file"
            raise ValueError(msg)
        return self
