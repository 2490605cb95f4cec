"""Sources of documents."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import Number, Positive, Section, Text, Weight


def _several(value: object) -> object:
    """Return a single text as a list of one."""
    return (value,) if isinstance(value, str) else value


SEVERAL = BeforeValidator(_several, json_schema_input_type=Text | list[Text])
"""The rule of a list that may be written as its only item."""


class PythonLibrarySource(Section):
    """The source files of the Python standard library on this machine."""

    kind: Literal["python_library"] = Field(
        default="python_library", description="The Python standard library of this machine."
    )


class RecordSource(Section):
    """Settings that sources of records share: the field that holds the text, and a filter."""

    text_field: Text = Field(
        default="text",
        description="Field or column of a record that holds the text; a.b is b of the object or struct a.",
    )
    filter: dict[Text, str | int | float | bool | tuple[str | int | float | bool, ...]] = Field(
        default_factory=dict,
        description="Fields, each with the value or the list of values that a record may have there; records with "
        "other values are left out. A name a.b may be that of b in the object or struct a.",
    )
    record_bytes: Positive = Field(default=67108864, description="Bytes of the longest record that can be used.")


class RetrySettings(Section):
    """Retries of network requests before the run fails, or skips the rest of the file."""

    deadline_seconds: Annotated[Number, Field(gt=0)] = Field(
        default=120.0, description="Seconds for which a request is retried after transient errors."
    )
    stall_seconds: Annotated[Number, Field(gt=0)] = Field(
        default=30.0, description="Seconds without a byte after which a request is abandoned and retried."
    )


class FilesSource(RecordSource):
    """Files of text or records, local or wherever fsspec reaches: s3://, gs://, https://, hf://."""

    kind: Literal["files"] = Field(default="files", description="Files of your own.")
    path: Annotated[tuple[Text, ...], Field(min_length=1), SEVERAL] = Field(
        description="Folder, file or fsspec glob, or a list of them."
    )
    format: Literal["auto", "txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow"] = Field(
        default="auto",
        description="Format of the files; auto decides by the suffix; json is an array or lines of records.",
    )
    compression: Literal["auto", "none", "gz", "zst", "bz2", "xz"] = Field(
        default="auto", description="Compression of txt, json and csv files; auto decides by the suffix."
    )
    encoding: Text = Field(
        default="auto",
        description="Encoding of txt, json and csv files, such as cp1252 or utf-16; auto is UTF-8 unless a byte order "
        "mark tells UTF-16 or UTF-32.",
    )
    delimiter: Text = Field(
        default="auto",
        description="Character between the columns of csv and tsv files; auto is the comma or the tabulator, unless "
        "only another one of , ; tab | gives the columns that are read.",
    )
    quote: str = Field(
        default='"', description="Character around values of csv and tsv files; empty means that none are quoted."
    )
    document_bytes: Positive = Field(
        default=4194304,
        description="Bytes up to which a text file of a folder is one document; a larger one, and a file that the path "
        "names itself, is cut after lines into documents of about 64 KiB.",
    )
    document_separator: Text | None = Field(
        default=None,
        description="Text between the documents of text files, such as <|endoftext|>, which is no part of them; null "
        "means that files are documents, or cut, by their size.",
    )
    retry: RetrySettings = Field(default_factory=RetrySettings, description="Retries of network requests.")

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str) -> str:
        try:
            if encoding != "auto":
                "".encode(encoding)
        except LookupError as error:
            msg = f"is {encoding!r}, which is no encoding of text: name one such as utf-8, utf-16, cp1252 or latin-1"
            raise ValueError(msg) from error
        return encoding

    @field_validator("delimiter", "quote")
    @classmethod
    def _is_a_character(cls, character: str, info: ValidationInfo) -> str:
        allowed = ("auto",) if info.field_name == "delimiter" else ("",)
        if character not in allowed and (len(character) != 1 or not character.isascii() or character in "\r\n"):
            msg = f"is {character!r}, not a single ASCII character: write one, or leave it out"
            raise ValueError(msg)
        return character


class HuggingFaceSource(RecordSource):
    """A dataset of the Hugging Face library, read as a stream."""

    kind: Literal["huggingface"] = Field(default="huggingface", description="A Hugging Face dataset.")
    path: Text = Field(description="Name on the hub, or a local folder.")
    name: Text | None = Field(default=None, description="Configuration of the dataset; null means its default.")
    split: Text = Field(
        default="train",
        description="Split of the dataset; of one that save_to_disk wrote also a part, such as train[:50%].",
    )
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit on the hub; null means the default branch."
    )


def _of_files(section: object) -> object:
    """Return the section of a set with the kind that one without a kind has."""
    return {"kind": "files", **section} if isinstance(section, dict) else section


EvaluationSet = Annotated[
    Annotated[FilesSource | HuggingFaceSource, Field(discriminator="kind")], BeforeValidator(_of_files)
]


class ScoreRange(Section):
    """The documents of a source whose score lies in a range: from ``min`` to below ``max``."""

    name: Text = Field(description="Name of the score, which a transform of data.transforms gives.")
    min: Number | None = Field(default=None, description="Smallest score; null sets no bound.")
    max: Number | None = Field(default=None, description="Bound below which the score lies; null sets no bound.")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min is not None and self.max is not None and self.min >= self.max:
            msg = f"min is {self.min:g}, which is not below max, {self.max:g}: no document would be left"
            raise ValueError(msg)
        return self


class _Weighted(Section):
    weight: Weight = Field(
        default=1,
        description="Relative share of the samples that come from this source, such as 3 or 0.7; a source whose "
        "weight is 0 in every stage is not read.",
    )
    score: ScoreRange | None = Field(
        default=None,
        description="Range of a score: the source gives only the documents in it, so that sources with the same data "
        "and other ranges are buckets with weights of their own; null gives all documents.",
    )


class WeightedPythonLibrary(PythonLibrarySource, _Weighted):
    """The Python standard library as a part of a mixture."""


class WeightedFiles(FilesSource, _Weighted):
    """Files as a part of a mixture."""


class WeightedHuggingFace(HuggingFaceSource, _Weighted):
    """A Hugging Face dataset as a part of a mixture."""


MixtureSource = Annotated[
    WeightedPythonLibrary | WeightedFiles | WeightedHuggingFace,
    Field(discriminator="kind"),
]


class StageSettings(Section):
    """A stage of a mixture: from a given point in the run, the mixture uses these weights."""

    after_tokens: Positive = Field(description="Tokens after which the stage begins, rounded up to rows.")
    weights: dict[Text, Weight] = Field(
        description="Weight of each source by name; a source that is left out is not read in this stage."
    )
