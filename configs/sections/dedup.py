"""The settings of the deduplication of documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from holdfast.configs.sections.base import Flag, Number, Positive, Section, Seed

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
