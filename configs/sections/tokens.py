"""The settings of tokens between tokenization and training: their packing into rows, and their cache."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from holdfast.configs.sections.base import Folder, KeySettings, Positive, Section, Text


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
