"""Data files that may be added during a run."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from holdfast.configs.sections.sources import FilesSource


class GrowingFilesSource(FilesSource):
    """Files of text or records to which files may be added during a run."""

    grow: bool = Field(
        default=False,
        description="Whether the run includes files that were added after its start, from its next epoch on.",
    )

    @model_validator(mode="after")
    def _grows_in_the_cache(self) -> Self:
        if self.grow and getattr(self, "mode", None) == "stream":
            msg = "grow is true, but data.mode=stream: only a run with cached tokens can include added files"
            raise ValueError(msg)
        return self
