"""The ports for transforms of documents before tokenization."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOTHING: Mapping[str, object] = MappingProxyType({})


class Transform(ABC):
    """Changes or drops a document by its text alone: a filter, a map or an augmentation.

    - Pure: equal texts give equal results, independent of earlier calls and of the process; the randomness of an
      augmentation derives from the text itself.
    - The result for valid Unicode is valid Unicode, or None. An empty result drops the document, as None does.
    - ``fingerprint`` identifies the transform, its options and its version: cached tokens depend on it, and a run can
      only be resumed with the same transforms.
    - Usable from several threads at once.
    - An exception concerns one document only; the caller treats the document as a record that cannot be used.
    """

    @abstractmethod
    def __call__(self, text: str) -> str | None:
        """Return the text to train on, or None to drop the document."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the transform, the same in every process."""


@dataclass(frozen=True, slots=True)
class Record:
    """A document with the ``fields`` of its record that were requested, as JSON values; a missing field is absent.

    ``scores`` are numbers that are stored beside the tokens of the document, by name. ``warnings`` are the reasons why
    the record is doubtful, although it is used.
    """

    text: str
    fields: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    scores: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """The verdict that a record is left out.

    ``reason`` is short and the same for all records with the same fault, such as ``gopher_quality.too_short``: drops
    are counted by it. ``detail`` is a sentence about this record for a person. ``ends_run`` means that the run ends
    with the detail as its error.
    """

    reason: str
    detail: str = ""
    ends_run: bool = False


class RecordTransform(ABC):
    """Judges and changes records, many at a time: validation, quality rules, scores.

    - ``apply`` returns one result for each record, in the same order: a record, which may be the one that was given, or
      ``Dropped``.
    - Pure: the result for a record depends on this record alone, not on its neighbors, on earlier calls or on the
      process.
    - A text for valid Unicode is valid Unicode. A record with an empty text is dropped without a reason.
    - ``fields`` are the names of the fields that ``apply`` reads beside the text. No other fields are read from the
      source.
    - ``fingerprint`` identifies the transform, its options and its version, as that of ``Transform`` does.
    - Usable from several threads at once.
    - An exception concerns the records of the call: the caller then calls again with each record alone, and treats
      those that raise as records that cannot be used.
    """

    @property
    @abstractmethod
    def fields(self) -> Sequence[str]:
        """Return the names of the fields that are read beside the text."""

    @abstractmethod
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        """Return the result for each of ``records``."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the transform, the same in every process."""
