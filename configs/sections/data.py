"""The data section: documents, their token cache, and how they become batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import (
    PLUGIN,
    Natural,
    Number,
    PluginSettings,
    Positive,
    Section,
    Text,
    by_kind,
)
from holdfast.configs.sections.chat import ChatSettings
from holdfast.configs.sections.dedup import DedupSettings  # noqa: TC001  pydantic evaluates the annotation
from holdfast.configs.sections.drift import DriftSettings  # noqa: TC001  pydantic evaluates the annotation
from holdfast.configs.sections.lineage import LineageSettings  # noqa: TC001  pydantic reads it
from holdfast.configs.sections.sources import (
    SEVERAL,
    FilesSource,
    HuggingFaceSource,
    MixtureSource,
    PythonLibrarySource,
    StageSettings,
)
from holdfast.configs.sections.tokens import CacheSettings, PackingSettings
from holdfast.configs.sections.validation import ValidationSettings  # noqa: TC001  pydantic reads it at runtime


class TransformSettings(PluginSettings):
    """A transform of each document: a built-in kind, such as length or gopher_quality, or one from another package."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, transform: Any) -> Any:
        return {"kind": transform} if isinstance(transform, str) else transform


class FeedSettings(Section):
    """Settings that all data sources share: how documents are split, ordered and packed."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    task: Literal["text", "chat", "completion", "preference"] = Field(
        default="text",
        description="Content of a record: text to train on as it is; chat, a conversation of which the replies are "
        "trained on; completion, a prompt and a completion, of which the completion is trained on; preference, a "
        "chosen and a rejected reply, of which the model learns to prefer the first.",
    )
    chat: ChatSettings = Field(
        default_factory=ChatSettings, description="Conversations, with data.task=chat or preference."
    )
    sequence_length: Annotated[Positive, Field(ge=8)] | Literal["auto"] = Field(
        default=512,
        description="Tokens in a row of a batch, at least 8. When the run begins, auto chooses the length into "
        "which nine in ten documents fit, or 99 in 100 conversations, at most 4096 and at most the model's positions.",
    )
    packing: PackingSettings = Field(default_factory=PackingSettings, description="Packing of documents into rows.")
    mode: Literal["auto", "cache", "stream"] = Field(
        default="auto",
        description="cache tokenizes once to disk and shuffles all rows; stream reads as it trains and shuffles in "
        "windows; auto caches the data that fit.",
    )
    cache: CacheSettings = Field(default_factory=CacheSettings, description="The token cache.")
    stream_buffer_bytes: Positive = Field(
        default=1 << 30, description="Maximum bytes of all shuffle windows of a streamed source together."
    )
    holdout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.02, description="Fraction of the documents held out for evaluation, from 0 to below 1."
    )
    holdout_by: Literal["document", "similar_documents"] = Field(
        default="document",
        description="What is held out as a whole: document looks at each by itself; similar_documents compares all "
        "plain texts at the start and holds out groups of similar ones, by their estimated similarity.",
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
    label: Text | None = Field(
        default=None,
        description="Name of the data in dataset versions, the ledger and reports; null names them by their path.",
    )
    prefetch: Natural = Field(
        default=4, description="Batches prepared ahead of the one in training; 0 disables prefetching."
    )
    prefetch_samples: Positive | None = Field(
        default=None, description="Rows prepared ahead, rounded up to whole batches; null means data.prefetch batches."
    )
    workers: Positive | None = Field(
        default=None,
        description="Threads that read and tokenize. null means one per processor core, and at least four for remote "
        "data that cannot be prefetched: tables, and streams of more than 24 lanes.",
    )
    epochs: Positive | None = Field(
        default=None,
        description="Passes over the data after which the run ends. Without a limit in run.budget they are its length, "
        "turned into steps before the first one. null repeats the data without end.",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop",
        description="Treatment of an unusable record: stop ends the run, skip leaves the record out and writes it to "
        "rejected.jsonl.",
    )
    strict: bool = Field(
        default=False,
        description="Whether files and fields of the data that are not used are an error; otherwise they are counted "
        "and named.",
    )
    transforms: tuple[TransformSettings, ...] = Field(
        default=(), description="Transforms of each text before tokenization: a list of kinds, applied in order."
    )
    validation: ValidationSettings | None = Field(
        default=None,
        description="Validation of each record before its transforms: rules for its fields, and outliers; null "
        "checks nothing.",
    )
    drift: DriftSettings | None = Field(
        default=None, description="Comparison of the data with an earlier version of them; null compares nothing."
    )
    dedup: DedupSettings | None = Field(
        default=None,
        description="Deduplication before tokenization, exact or minhash, after the transforms; needs cached tokens. "
        "null keeps duplicates.",
    )
    lineage: LineageSettings | None = Field(
        default=None, description="Receiver of OpenLineage events about preparation and training; null sends none."
    )

    exclude: Annotated[tuple[Text, ...], SEVERAL] = Field(
        default=(),
        description="Documents to train and evaluate without: a list of ids, or of files with one id on each line.",
    )

    @model_validator(mode="before")
    @classmethod
    def _packs_whole_conversations(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("task", "text") == "text":
            return given
        packing = given.get("packing") or {}
        if not isinstance(packing, dict):
            return given
        return {**given, "packing": {"kind": "best_fit", "overflow": "drop", **packing}}

    @model_validator(mode="after")
    def _is_of_its_task(self) -> Self:
        if self.task not in ("chat", "preference") and self.chat != ChatSettings():
            msg = f"chat belongs to data.task=chat or preference, but data.task is {self.task}: change either"
            raise ValueError(msg)
        if self.task == "text":
            return self
        if self.holdout_by == "similar_documents":
            msg = (
                f"holdout_by is similar_documents, which compares plain texts, but data.task is {self.task}: leave it "
                "out, so that records are held out one by one"
            )
            raise ValueError(msg)
        if self.kind in ("python_library", "tokens"):
            msg = f"task is {self.task}, but data.kind={self.kind} has no such records: set data.path to files of them"
            raise ValueError(msg)
        if self.packing.kind != "best_fit" or self.packing.overflow == "split":
            overflow = "drop" if self.task == "preference" else "drop or truncate"
            msg = (
                f"packing cuts records in two by kind={self.packing.kind} and overflow={self.packing.overflow}, but "
                f"those of data.task={self.task} are packed whole: use best_fit with {overflow}"
            )
            raise ValueError(msg)
        if self.task == "preference":
            self._is_of_preferences()
        if self.transforms:
            msg = f"transforms change plain text, but the records of data.task={self.task} are none: leave them out"
            raise ValueError(msg)
        return self

    def _is_of_preferences(self) -> None:
        if self.packing.overflow == "truncate":
            msg = (
                "packing.overflow is truncate, but the replies of a preference are compared whole: use drop, and raise "
                "data.sequence_length if many are longer"
            )
            raise ValueError(msg)
        if self.mode == "stream":
            msg = (
                "mode is stream, but data.task=preference keeps the reference log-probabilities in the token cache: "
                "leave data.mode out"
            )
            raise ValueError(msg)
        if self.chat.train_on != "all_assistant":
            msg = "chat.train_on is for data.task=chat, as a preference compares the last replies: leave it out"
            raise ValueError(msg)

    @property
    def has_conversations(self) -> bool:
        """Return whether records are conversations, which need a chat template."""
        return self.task in ("chat", "preference")

    @property
    def row_length(self) -> int:
        """Return the tokens in a row; the length must be known, not ``auto``."""
        assert isinstance(self.sequence_length, int)
        return self.sequence_length

    @property
    def is_encrypted(self) -> bool:
        """Return whether the tokens and their descriptions are encrypted."""
        return self.cache.encryption is not None

    @field_validator("exclude", mode="before")
    @classmethod
    def _is_quoted(cls, exclude: object) -> object:
        if isinstance(exclude, int | float) or (
            isinstance(exclude, list | tuple) and any(isinstance(each, int | float) for each in exclude)
        ):
            msg = "holds a number: put the ids of documents in quotes, or in a file"
            raise ValueError(msg)
        return exclude

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

    @model_validator(mode="after")
    def _is_chosen(self) -> Self:
        if self.label is not None and "kind" not in self.model_fields_set:
            msg = f"label is {self.label!r}, which names no data by itself: set data.path to files or a name on the hub"
            raise ValueError(msg)
        return self


class FilesDataSettings(FilesSource, FeedSettings):
    """Files of text or records, local or wherever fsspec reaches: s3://, gs://, https://, hf://."""

    grow: bool = Field(
        default=False,
        description="Whether the run includes files that were added after its start, from its next epoch on.",
    )

    @model_validator(mode="after")
    def _grows_in_the_cache(self) -> Self:
        if self.grow and self.mode == "stream":
            msg = "grow is true, but data.mode=stream: only a run with cached tokens can include added files"
            raise ValueError(msg)
        return self


class HuggingFaceDataSettings(HuggingFaceSource, FeedSettings):
    """A dataset of the Hugging Face library, read as a stream."""


class TokensDataSettings(FeedSettings):
    """Files of token ids, in which each document ends with end-of-text."""

    kind: Literal["tokens"] = Field(default="tokens", description="Documents that are tokenized already.")
    path: Annotated[tuple[Text, ...], Field(min_length=1), SEVERAL] = Field(
        description=".npy, .bin, Parquet or Arrow files, a folder or glob of them, or a token cache of Holdfast."
    )
    dtype: Literal["auto", "uint16", "uint32", "int32", "int64"] = Field(
        default="auto",
        description="Integer type of the ids in .bin files and in .npy files without a header of numpy; auto reads it "
        "from a header or an index beside them, else finds the type as which all ids are in the vocabulary.",
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
