"""The data section: documents, their token cache, and how they become batches."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Tag, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import (
    PLUGIN,
    Flag,
    Folder,
    KeySettings,
    Natural,
    Number,
    PluginSettings,
    Positive,
    Section,
    Seed,
    Text,
    by_kind,
)
from holdfast.configs.sections.ledger import LineageSettings  # noqa: TC001  pydantic reads it
from holdfast.configs.sections.sources import (
    SEVERAL,
    FilesSource,
    HuggingFaceSource,
    MixtureSource,
    PythonLibrarySource,
    StageSettings,
)
from holdfast.configs.sections.validation import ValidationSettings  # noqa: TC001  pydantic reads it at runtime

_OF_MINHASH = ("threshold", "ngram", "permutations", "bands", "seed")


class DedupSettings(Section):
    """Deduplication: of documents with the same text, or nearly the same, the first one stays."""

    kind: Literal["exact", "minhash"] = Field(
        description="exact finds documents with the same text; minhash also finds documents that share most of their "
        "sequences of words."
    )
    scope: Literal["source", "all"] = Field(
        default="all",
        description="Documents that are compared: source compares those of each source of a mixture among themselves, "
        "all compares those of all sources.",
    )
    normalize: Flag = Field(
        default=True,
        description="Whether texts are compared in lower case, in Unicode's form NFC, and with each run of white space "
        "as one space.",
    )
    threshold: Annotated[Number, Field(ge=0.2, le=1)] = Field(
        default=0.8,
        description="Smallest Jaccard similarity of two documents that counts as nearly the same, from 0.2 to 1.",
    )
    ngram: Positive = Field(default=5, description="Words in a sequence that documents are compared by.")
    permutations: Annotated[Positive, Field(ge=16, le=1024)] = Field(
        default=112, description="Values in a MinHash signature, from 16 to 1024."
    )
    bands: Positive | None = Field(
        default=None,
        description="Bands of the signature: documents that agree in a whole band are compared. null chooses the "
        "longest bands that find at least 95 % of the pairs at the threshold.",
    )
    seed: Seed = Field(default=0, description="Seed of the MinHash permutations.")

    @model_validator(mode="before")
    @classmethod
    def _named(cls, dedup: Any) -> Any:
        return {"kind": dedup} if isinstance(dedup, str) else dedup

    @model_validator(mode="after")
    def _fits(self) -> Self:
        fields = type(self).model_fields
        strange = [name for name in _OF_MINHASH if getattr(self, name) != fields[name].default]
        if self.kind == "exact" and strange:
            msg = f"{strange[0]} belongs to data.dedup.kind=minhash, but data.dedup.kind is exact: change either"
            raise ValueError(msg)
        if self.bands is not None and self.permutations % self.bands:
            msg = (
                f"bands is {self.bands}, which does not divide the {self.permutations} permutations: choose a divisor, "
                "or leave bands out"
            )
            raise ValueError(msg)
        return self


class PackingSettings(Section):
    """Packing of documents into rows of one length."""

    kind: Literal["concat", "best_fit", "sliding"] = Field(
        default="concat",
        description="concat cuts the stream of documents into rows; best_fit packs whole documents together; sliding "
        "takes overlapping windows of each document.",
    )
    overflow: Literal["split", "truncate", "drop"] = Field(
        default="split",
        description="Treatment of a document that is longer than a row: split, truncate or drop it; sliding supports "
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
    """The token cache: text is tokenized only once."""

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
        description="Eviction policy of the token cache; the data of other runs are always evicted first. lru "
        "evicts the least recently used tokens first; next_use does the same for other runs, but evicts first "
        "those of the run's own tokens that it needs last; any other name is an outside policy.",
    )
    eviction_options: dict[str, Any] | None = Field(
        default=None, description="Arguments of an outside eviction policy; null passes none."
    )
    encryption: KeySettings | None = Field(
        default=None, description="Encryption of the cached tokens; null stores them unencrypted."
    )


def _day(value: str) -> str:
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError as error:
        msg = f"is {value!r}: write a day such as 2024-07-26"
        raise ValueError(msg) from error


Day = Annotated[str, BeforeValidator(str), AfterValidator(_day)]


class ChatSettings(Section):
    """Conversations to train on: their template, and the replies that are trained on."""

    template: Text | None = Field(
        default=None,
        description="Chat template: chatml, plain, or a file in the language of Jinja; null means that of the "
        "tokenizer. plain needs no special token but end-of-text.",
    )
    template_options: dict[str, Any] | None = Field(
        default=None, description="Variables of the chat template, such as enable_thinking: false; null gives none."
    )
    template_date: Day = Field(
        default="2024-07-26",
        description="Date that a template with the current date writes into conversations to train on, so that they "
        "are the same on each day.",
    )
    train_on: Literal["all_assistant", "last_assistant"] = Field(
        default="all_assistant",
        description="Replies to train on: all_assistant or last_assistant, only the last one of each conversation.",
    )
    reasoning: Literal["keep", "drop"] = Field(
        default="keep",
        description="Reasoning of the replies: keep trains on it, drop leaves it out, a <think> in the text included.",
    )


class DriftSettings(Section):
    """The version of the data to compare with, and the answer to a difference."""

    reference: Text = Field(
        description="The dataset to compare with: its folder in a token cache, or its name in the run's token cache.",
    )
    action: Literal["warn", "stop"] = Field(
        default="warn",
        description="Answer to drift: warn logs it; stop also ends the run with an error if the drift is major.",
    )
    every: Positive = Field(
        default=10000,
        description="Documents of a stream between two comparisons; cached data are compared once, at the start.",
    )


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
    def are_tokens(self) -> bool:
        """Return whether the data are tokens already, so that there is no text."""
        return self.kind == "tokens"

    @property
    def holds_pairs(self) -> bool:
        """Return whether the documents are preferences, each a pair of conversations."""
        return self.task == "preference"

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
