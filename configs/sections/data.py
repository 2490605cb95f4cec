"""The data section: documents, their token cache, and how they become batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import (
    PLUGIN,
    Folder,
    KeySettings,
    Natural,
    Number,
    PluginSettings,
    Positive,
    Section,
    Text,
    by_kind,
)
from holdfast.configs.sections.growth import GrowingFilesSource
from holdfast.configs.sections.sources import (
    HuggingFaceSource,
    MixtureSource,
    PythonLibrarySource,
    StageSettings,
    several,
)


class PackingSettings(Section):
    """Packing of documents into rows of one length."""

    kind: Literal["concat", "best_fit", "sliding"] = Field(
        default="concat",
        description="concat cuts the stream of documents into rows; best_fit packs whole documents together; sliding "
        "takes overlapping windows of each document.",
    )
    overflow: Literal["split", "truncate", "drop"] = Field(
        default="split",
        description="How to treat a document that is longer than a row: split, truncate or drop it; sliding supports "
        "split only.",
    )
    stride: Positive | None = Field(
        default=None,
        description="Tokens from the start of one sliding window to the start of the next; null means half a row.",
    )

    @field_validator("overflow")
    @classmethod
    def _is_of_rows(cls, overflow: str, info: ValidationInfo) -> str:
        if overflow != "split" and info.data.get("kind") == "sliding":
            msg = (
                f"is {overflow}, but data.packing.kind=sliding takes windows of the whole document: leave "
                "data.packing.overflow out"
            )
            raise ValueError(msg)
        return overflow

    @field_validator("stride")
    @classmethod
    def _is_of_windows(cls, stride: int | None, info: ValidationInfo) -> int | None:
        if stride is not None and info.data.get("kind", "sliding") != "sliding":
            msg = f"belongs to data.packing.kind=sliding, but data.packing.kind is {info.data['kind']}: change either"
            raise ValueError(msg)
        return stride


class CacheSettings(Section):
    """The token cache, by which text is tokenized once."""

    dir: Folder | None = Field(
        default=None,
        description="Folder of the token cache; null means run.cache_dir/tokens, or run.cache_dir/encrypted-tokens "
        "with encryption.",
    )
    budget: Positive | None = Field(
        default=None,
        description="Maximum bytes of the token cache; tokens that this run does not need are evicted first; null "
        "means nine tenths of the free disk space.",
    )
    eviction: Text = Field(
        default="next_use",
        description="Eviction policy of the token cache; the data of other runs always go first. lru evicts the least "
        "recently used tokens; next_use does too, but among the run's own evicts those that it needs "
        "last; any other name is an outside policy.",
    )
    eviction_options: dict[str, Any] | None = Field(
        default=None, description="Arguments of an outside eviction policy; null passes none."
    )
    encryption: KeySettings | None = Field(
        default=None, description="Encryption of the cached tokens; null stores them unencrypted."
    )


class TransformSettings(PluginSettings):
    """A transform of each text: a built-in kind (length, normalize, replace), or one from another package."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, transform: Any) -> Any:
        return {"kind": transform} if isinstance(transform, str) else transform


class FeedSettings(Section):
    """Settings that all data sources share: how documents are split, ordered and packed."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    sequence_length: Annotated[Positive, Field(ge=8)] | Literal["auto"] = Field(
        default=512,
        description="Tokens in a row of a batch, at least 8. auto chooses, when the run begins, the length that nine "
        "in ten documents fit in, up to the model's positions and at most 4096.",
    )
    packing: PackingSettings = Field(default_factory=PackingSettings, description="How documents become rows.")
    mode: Literal["auto", "cache", "stream"] = Field(
        default="auto",
        description="cache tokenizes once to disk and shuffles all rows; stream reads as it trains and shuffles in "
        "windows; auto caches what fits.",
    )
    cache: CacheSettings = Field(default_factory=CacheSettings, description="The token cache.")
    stream_buffer_bytes: Positive = Field(
        default=1 << 30, description="Maximum bytes of all shuffle windows of a streamed source together."
    )
    holdout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.02, description="Fraction of the documents held out for evaluation, from 0 to below 1."
    )
    folds: Annotated[Positive, Field(ge=2)] | None = Field(
        default=None,
        description="Number of folds for cross-validation; null holds out the fraction data.holdout instead.",
    )
    fold: Natural = Field(default=0, description="Index of the fold that is held out, from 0 to below data.folds.")
    shuffle_tokens: Positive = Field(
        default=8388608,
        description="Tokens of a stream that are packed and shuffled at a time, over all lanes together.",
    )
    prefetch: Natural = Field(
        default=4, description="Batches prepared ahead of the one in training; 0 disables prefetching."
    )
    workers: Positive | None = Field(
        default=None,
        description="Threads that read and tokenize. null means one per processor core, and at least four for remote "
        "data that cannot be prefetched: tables, and streams of more than 24 lanes.",
    )
    epochs: Positive | None = Field(
        default=None, description="Passes over the data after which the run ends; null repeats the data without end."
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop",
        description="How to treat an unusable record: stop ends the run, skip leaves the record out and writes it to "
        "rejected.jsonl.",
    )
    transforms: tuple[TransformSettings, ...] = Field(
        default=(), description="Transforms of each text before tokenization: a list of kinds, applied in order."
    )

    @property
    def row_length(self) -> int:
        """Return the tokens in a row; the length must have been decided."""
        assert isinstance(self.sequence_length, int)
        return self.sequence_length

    @field_validator("fold")
    @classmethod
    def _is_there(cls, fold: int, info: ValidationInfo) -> int:
        folds = info.data.get("folds", fold + 1)
        if folds is None and fold:
            msg = f"is {fold}, but data.folds is null: set the number of folds, or leave data.fold out"
            raise ValueError(msg)
        if folds is not None and fold >= folds:
            msg = f"must be below data.folds, which is {folds}, not {fold}"
            raise ValueError(msg)
        return fold


class PythonLibraryDataSettings(PythonLibrarySource, FeedSettings):
    """The source files of the Python standard library on this machine."""


class FilesDataSettings(GrowingFilesSource, FeedSettings):
    """Files of text or records, local or wherever fsspec reaches: s3://, gs://, https://, hf://."""


class HuggingFaceDataSettings(HuggingFaceSource, FeedSettings):
    """A dataset of the Hugging Face library, read as a stream."""


class TokensDataSettings(FeedSettings):
    """Files of token ids, in which each document ends with end-of-text."""

    kind: Literal["tokens"] = Field(default="tokens", description="Documents that are tokenized already.")
    path: Annotated[tuple[Text, ...], Field(min_length=1), BeforeValidator(several)] = Field(
        description=".npy, .bin, Parquet or Arrow files, a folder or glob of them, or a token cache of Holdfast."
    )
    dtype: Literal["auto", "uint16", "uint32", "int32", "int64"] = Field(
        default="auto", description="Integer type of the ids in .bin files; auto reads it from the files beside them."
    )
    column: Text = Field(default="input_ids", description="Column of Parquet and Arrow files that holds the token ids.")

    @field_validator("mode")
    @classmethod
    def _is_read_in_place(cls, mode: str) -> str:
        if mode == "stream":
            msg = "is stream, but data.kind=tokens is always read in place: leave data.mode out"
            raise ValueError(msg)
        return mode

    @field_validator("cache")
    @classmethod
    def _is_somebody_else_s(cls, cache: CacheSettings) -> CacheSettings:
        if cache.encryption is not None:
            msg = "names a key, but data.kind=tokens reads existing files unchanged: leave the encryption out"
            raise ValueError(msg)
        return cache


class MixtureDataSettings(FeedSettings):
    """Several sources at once, by weight."""

    kind: Literal["mixture"] = Field(default="mixture", description="Several sources at once, by weight.")
    sources: Annotated[dict[Text, MixtureSource], Field(min_length=1)] = Field(
        description="The sources, under names of your choice, each with its kind, its settings and its weight."
    )
    stages: tuple[StageSettings, ...] = Field(
        default=(), description="Later stages of the run with other weights: a list, in order."
    )

    @model_validator(mode="after")
    def _stages_name_sources(self) -> Self:
        for stage in self.stages:
            if strange := sorted(stage.weights.keys() - self.sources.keys()):
                msg = f"stages name {strange[0]!r}, but the sources are {', '.join(sorted(self.sources))}"
                raise ValueError(msg)
        if not self.giving:
            msg = f"gives no source a weight: set that of {' or '.join(sorted(self.sources))} above 0"
            raise ValueError(msg)
        return self

    @property
    def giving(self) -> dict[str, MixtureSource]:
        """Return the sources that have a weight in any stage, sorted by name; a run reads only these."""
        later = {name for stage in self.stages for name, weight in stage.weights.items() if weight}
        return {name: source for name, source in sorted(self.sources.items()) if source.weight or name in later}


class PluginDataSettings(FeedSettings):
    """A data source that is not built in."""

    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the outside adapter's constructor.")


DataSettings = Annotated[
    Annotated[PythonLibraryDataSettings, Tag("python_library")]
    | Annotated[FilesDataSettings, Tag("files")]
    | Annotated[HuggingFaceDataSettings, Tag("huggingface")]
    | Annotated[TokensDataSettings, Tag("tokens")]
    | Annotated[MixtureDataSettings, Tag("mixture")]
    | Annotated[PluginDataSettings, Tag(PLUGIN)],
    by_kind("python_library", "files", "huggingface", "tokens", "mixture"),
]
