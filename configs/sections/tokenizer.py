"""How text becomes tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from configs.sections.base import PLUGIN, PluginSettings, Positive, Section, Text, by_kind


class BackendSettings(Section):
    """What both kinds share: the library that encodes."""

    backend: Literal["auto", "huggingface", "tiktoken", "gigatoken"] = Field(
        default="auto",
        description="Library that encodes, always with the same ids; auto takes the fastest one that is installed.",
    )


class TrainTokenizerSettings(BackendSettings):
    """A byte-level tokenizer trained on the run's own data."""

    kind: Literal["train"] = Field(default="train", description="Train a tokenizer on the data.")
    vocabulary_size: Annotated[Positive, Field(ge=257)] = Field(
        default=4096, description="Tokens in the vocabulary, at least 257: the 256 bytes and end-of-text."
    )
    max_bytes: Positive = Field(
        default=16 * 1024 * 1024, description="Bytes of text that the tokenizer is trained on at most."
    )


class HuggingFaceTokenizerSettings(BackendSettings):
    """An existing tokenizer in Hugging Face's format."""

    kind: Literal["huggingface"] = Field(default="huggingface", description="An existing Hugging Face tokenizer.")
    path: Text = Field(description="A tokenizer.json, a model folder or a name on the hub.")
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit on the hub; null means the default branch."
    )


TokenizerSettings = Annotated[
    Annotated[TrainTokenizerSettings, Tag("train")]
    | Annotated[HuggingFaceTokenizerSettings, Tag("huggingface")]
    | Annotated[PluginSettings, Tag(PLUGIN)],
    by_kind("train", "huggingface"),
]
