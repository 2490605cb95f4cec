"""Where documents come from, and how they become batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag

from configs.sections.base import PLUGIN, Natural, Number, Positive, Section, Text, by_kind


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class FeedSettings(Section):
    """What every data source shares: how its documents are split, ordered and packed."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    sequence_length: Annotated[Positive, Field(ge=8)] = Field(
        default=512, description="Tokens in a row of a batch, at least 8."
    )
    holdout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.02, description="Share of the documents kept for evaluation, from 0 to below 1."
    )
    shuffle_tokens: Natural = Field(
        default=1048576, description="Tokens that are packed and shuffled together; 0 keeps the order of the documents."
    )
    prefetch: Natural = Field(default=4, description="Batches prepared ahead of the one in training; 0 prepares none.")
    epochs: Positive | None = Field(
        default=None, description="Passes over the data after which the run ends; null repeats for ever."
    )


class PythonLibraryDataSettings(FeedSettings):
    """The source files of the Python standard library on this machine."""

    kind: Literal["python_library"] = Field(
        default="python_library", description="The Python standard library of this machine."
    )


class FilesDataSettings(FeedSettings):
    """Text or JSON-lines files, local or wherever fsspec reaches."""

    kind: Literal["files"] = Field(default="files", description="Files of one's own.")
    path: Annotated[tuple[Text, ...], Field(min_length=1), BeforeValidator(_several)] = Field(
        description="Folder, file or fsspec glob, or a list of them."
    )
    format: Literal["auto", "txt", "jsonl"] = Field(
        default="auto", description="Format of the files; auto goes by the suffix, with or without .gz."
    )
    text_field: Text = Field(default="text", description="Field of a JSON line that holds the text.")


class PluginDataSettings(FeedSettings):
    """A data source that is not built in."""

    options: dict[str, Any] = Field(default_factory=dict, description="What the outside adapter is to be given.")


DataSettings = Annotated[
    Annotated[PythonLibraryDataSettings, Tag("python_library")]
    | Annotated[FilesDataSettings, Tag("files")]
    | Annotated[PluginDataSettings, Tag(PLUGIN)],
    by_kind("python_library", "files"),
]
