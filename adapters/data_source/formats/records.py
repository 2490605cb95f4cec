"""Parts, text fields and filters of record files, and the reports about bad records, for all formats."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Self, final

from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Value = str | int | float | bool | None

BYTE_ORDER_MARK = "\ufeff"

_READING = 2  # increase it when the same bytes give different documents
_MOST_NAMES_SHOWN = 10


def fingerprint_of(*how: object) -> str:
    """Return a short fingerprint of the options ``how``, JSON values, with which the data are read."""
    return blake2b(json.dumps([_READING, *how]).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of documents, records and units, in bytes.

    Plain text is cut after the last line end in each ``document_bytes`` (4 or more), so a piece is less than twice as
    long. A record longer than ``record_bytes`` is rejected without loading it into memory. Files with random access are
    read in parts of about ``unit_bytes``, whatever their size.
    """

    document_bytes: int = 64 << 10
    record_bytes: int = 64 << 20
    unit_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """The documents of ``file`` that begin at a position from ``start`` on and before ``stop`` (None: the end)."""

    file: str
    start: int = 0
    stop: int | None = None

    @property
    def limit(self) -> float:
        """Return ``stop`` as a number."""
        return float("inf") if self.stop is None else self.stop


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """The text field of a record, and the ``filter``: for each name of another field, the allowed values.

    ``kept`` are the names of other fields that are handed on with the document.
    """

    text: str
    filter: tuple[tuple[str, frozenset[tuple[bool, Value]]], ...] = ()
    kept: tuple[str, ...] = ()

    @classmethod
    def choose(cls, text: str, allowed: Mapping[str, Value | Sequence[Value]] | None) -> Self:
        """Return the fields with the text field ``text`` and the filter ``allowed``, one or more values per name."""
        return cls(text, tuple((name, frozenset(map(_key, _several(some)))) for name, some in (allowed or {}).items()))

    def keeping(self, names: Sequence[str]) -> Self:
        """Return these fields, with the fields of ``names`` handed on."""
        return replace(self, kept=tuple(sorted(set(names) - {self.text})))

    @property
    def names(self) -> list[str]:
        """Return the names of all fields that are read, each once, the text first."""
        return list(dict.fromkeys([self.text, *(name for name, _ in self.filter), *self.kept]))

    def as_text(self) -> Self:
        """Return the same fields for records whose values are all text."""
        as_text = ((name, frozenset((False, str(value)) for _, value in allowed)) for name, allowed in self.filter)
        return type(self)(self.text, tuple(as_text), self.kept)

    def to_json(self) -> list[object]:
        """Return the fields as JSON, equal for fields that select the same documents."""
        return [self.text, sorted([name, sorted(map(repr, allowed))] for name, allowed in self.filter)]

    def kept_of(self, record: Mapping[str, object]) -> Mapping[str, object]:
        """Return the values of ``record`` that are handed on with its document."""
        return {name: record[name] for name in self.kept if name in record}

    def wants(self, record: Mapping[str, object]) -> bool:
        """Return whether ``record`` passes the filter; a missing field counts as None."""
        return all(_is_among(record.get(name), allowed) for name, allowed in self.filter)

    def missing(self, columns: Iterable[str], file: str) -> str | None:
        """Return a sentence if the ``columns`` of ``file`` do not include all fields, else None."""
        columns = list(columns)
        for name in self.names:
            if name not in columns:
                setting = self._setting_of(name)
                return f"{file}: there is no column {name!r}, only {shown(columns)}: set {setting} to one of them"
        return None

    def _setting_of(self, name: str) -> str:
        if name == self.text:
            return "data.text_field"
        is_filtered = any(name == each for each, _ in self.filter)
        return "data.filter" if is_filtered else "the fields of data.validation and data.transforms"


def document(
    text: object, place: str, start: int, end: int, fields: Fields, record: Mapping[str, object] | None = None
) -> Document | Rejected | None:
    """Return the document of the record at ``place``, its rejection if ``text`` is not text, or None if it is blank.

    ``record`` is needed if ``fields`` keeps other fields. Half of a surrogate pair is not valid Unicode.
    """
    if not isinstance(text, str):
        reason = (
            f"{place}: the field {fields.text!r} holds {kind_of(text)}, not text: repair the record, or set "
            "data.text_field to the field that holds the text"
        )
        return Rejected(reason, start, end)
    if not text or text.isspace():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = (
            f"{place}: the field {fields.text!r} holds half of a surrogate pair (\\u{ord(text[error.start]):04x}) at "
            f"character {error.start}, which is not valid Unicode: repair the record or leave it out"
        )
        return Rejected(reason, start, end)
    return Document(text, start, end, fields.kept_of(record)) if record and fields.kept else Document(text, start, end)


def too_long(place: str, start: int, end: int, limit: int) -> Rejected:
    """Return the rejection of a record that takes more than ``limit`` bytes."""
    reason = f"{place}: the record is longer than {limit:,} bytes: split it, or raise data.record_bytes"
    return Rejected(reason, start, end)


def not_utf8(file: str, position: int, start: int, end: int) -> Rejected:
    """Return the rejection of a record that is not UTF-8 at the byte ``position``."""
    reason = (
        f"{file}: byte {position} is not UTF-8; it seems to be a binary file or text in another encoding: "
        "convert it to UTF-8 or leave it out"
    )
    return Rejected(reason, start, end)


def kind_of(value: object) -> str:
    """Return JSON's name for the type of ``value``, with an article."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def shown(names: Iterable[str]) -> str:
    """Return ``names`` for a sentence, a long list shortened."""
    names = list(names)
    more = ", ..." if len(names) > _MOST_NAMES_SHOWN else ""
    return f"{', '.join(map(repr, names[:_MOST_NAMES_SHOWN]))}{more}" if names else "nothing at all"


def _several(value: Value | Sequence[Value]) -> Iterable[Value]:
    return (value,) if isinstance(value, str | int | float | None) else value


def _key(value: Value) -> tuple[bool, Value]:
    return isinstance(value, bool), value


def _is_among(value: object, allowed: frozenset[tuple[bool, Value]]) -> bool:
    return isinstance(value, str | int | float | None) and _key(value) in allowed
