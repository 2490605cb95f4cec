"""The tokenizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator

from holdfast.configs.sections.base import PLUGIN, Flag, PluginSettings, Positive, Section, Text, by_kind
from holdfast.configs.sections.sources import SEVERAL

_ALLOW_OTHER = Field(
    default=False,
    description="Whether a new run may use a different tokenizer than the weights at model.path were trained with.",
)


class BackendSettings(Section):
    """Settings that both kinds share: the tokens around a document, and the library that encodes."""

    allow_other: Flag = _ALLOW_OTHER
    add_bos: Literal["auto"] | Flag = Field(
        default="auto",
        description="Whether documents and prompts begin with the tokenizer's bos_token; auto puts the tokens around "
        "them that the tokenizer's own post-processor has, false none but end-of-text after a document.",
    )
    loader: Literal["file", "transformers"] = Field(
        default="file",
        description="What encodes if the tokenizer.json of a model and transformers' AutoTokenizer give different ids: "
        "the file, which models are published with, or transformers.",
    )
    backend: Literal["auto", "huggingface", "tiktoken", "gigatoken"] = Field(
        default="auto",
        description="Library that encodes text; the ids are the same with each; auto uses the fastest one that is "
        "installed.",
    )


class TrainTokenizerSettings(BackendSettings):
    """A byte-level tokenizer trained on the run's own data."""

    kind: Literal["train"] = Field(default="train", description="Train a tokenizer on the data.")
    vocabulary_size: Annotated[Positive, Field(ge=257)] = Field(
        default=4096, description="Tokens in the vocabulary, at least 257: the 256 bytes and end-of-text."
    )
    max_bytes: Positive = Field(
        default=16 * 1024 * 1024, description="Maximum bytes of text that the tokenizer is trained on."
    )
    special_tokens: Annotated[tuple[Text, ...], SEVERAL] = Field(
        default=(),
        description="Further special tokens, such as those of a chat template: a list. No text becomes one of them.",
    )

    @field_validator("special_tokens")
    @classmethod
    def _are_distinct(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if len({"<|endoftext|>", *tokens}) <= len(tokens):
            msg = "names a token twice, or <|endoftext|>, which is always there: leave it out"
            raise ValueError(msg)
        return tokens


class HuggingFaceTokenizerSettings(BackendSettings):
    """An existing tokenizer in Hugging Face's format."""

    kind: Literal["huggingface"] = Field(default="huggingface", description="An existing Hugging Face tokenizer.")
    path: Text = Field(description="A tokenizer.json, a model folder or a name on the hub.")
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit on the hub; null means the default branch."
    )

    @property
    def follows_model(self) -> bool:
        """Return whether this tokenizer was not chosen but comes with the weights to train."""
        return "path" not in self.model_fields_set


class PluginTokenizerSettings(PluginSettings):
    """A tokenizer of another package."""

    allow_other: Flag = _ALLOW_OTHER


TokenizerSettings = Annotated[
    Annotated[TrainTokenizerSettings, Tag("train")]
    | Annotated[HuggingFaceTokenizerSettings, Tag("huggingface")]
    | Annotated[PluginTokenizerSettings, Tag(PLUGIN)],
    by_kind("train", "huggingface"),
]


FORMER_VALUES = {"add_bos": False, "loader": "transformers"}
"""What earlier versions did, in whose records these settings are not."""


def of_model(tokenizer: Any, model: Any) -> HuggingFaceTokenizerSettings | None:
    """Return the tokenizer of the weights that ``model`` loads; None if ``tokenizer`` was chosen or no weights load."""
    chosen = tokenizer.model_fields_set - BackendSettings.model_fields.keys()
    if chosen or not getattr(model, "loads_weights", False):
        return None
    return HuggingFaceTokenizerSettings.model_construct(
        _fields_set=set(tokenizer.model_fields_set),
        path=model.path,
        revision=getattr(model, "revision", None),
        **{name: getattr(tokenizer, name) for name in BackendSettings.model_fields},
    )
