"""Parts, text fields and filters of record files, and the reports about bad records, for all formats."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Self, final

from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Value = str | int | float | bool | None

BYTE_ORDER_MARK = "\ufeff"

_READING = 2  # raise it when the same bytes become other documents
_MOST_NAMES_SHOWN = 10


def fingerprint_of(*how: object) -> str:
    """Return a short fingerprint of ``how`` the data are read, given as JSON values."""
    return blake2b(json.dumps([_READING, *how]).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a file is taken at once, in bytes.

    Plain text is cut about every ``document_bytes`` (4 or more): behind the last line that ends in each so many bytes,
    so that a piece is less than twice as long. A record longer than ``record_bytes`` is rejected without being held in
    memory. Files that can be entered anywhere are read in parts of about ``unit_bytes``, whatever their size.
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
    """Which field of a record is the text, and what other fields must hold: for each name, the values allowed."""

    text: str
    filter: tuple[tuple[str, frozenset[tuple[bool, Value]]], ...] = ()

    @classmethod
    def choose(cls, text: str, allowed: Mapping[str, Value | Sequence[Value]] | None) -> Self:
        """Return the choice of ``text`` and of records whose fields hold one of the values ``allowed`` for them."""
        return cls(text, tuple((name, frozenset(map(_key, _several(some)))) for name, some in (allowed or {}).items()))

    @property
    def names(self) -> list[str]:
        """Return all fields that are looked at, the text first."""
        return [self.text, *(name for name, _ in self.filter if name != self.text)]

    def as_text(self) -> Self:
        """Return the same choice among records whose fields are all texts."""
        as_text = ((name, frozenset((False, str(value)) for _, value in allowed)) for name, allowed in self.filter)
        return type(self)(self.text, tuple(as_text))

    def to_json(self) -> list[object]:
        """Return the choice as JSON, equal for equal choices."""
        return [self.text, sorted([name, sorted(map(repr, allowed))] for name, allowed in self.filter)]

    def wants(self, record: Mapping[str, object]) -> bool:
        """Return whether the filter lets ``record`` pass; a field that is missing counts as None."""
        return all(_is_among(record.get(name), allowed) for name, allowed in self.filter)

    def missing(self, columns: Iterable[str], file: str) -> str | None:
        """Return a sentence if not all fields are among the ``columns`` of ``file``."""
        columns = list(columns)
        for name in self.names:
            if name not in columns:
                setting = "data.text_field" if name == self.text else "data.filter"
                return f"{file}: there is no column {name!r}, only {shown(columns)}: set {setting} to one of them"
        return None


def document(text: object, place: str, start: int, end: int, fields: Fields) -> Document | Rejected | None:
    """Return what the text of the record at ``place`` makes, None if it is blank.

    Half of a surrogate pair is no Unicode text.
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
    return Document(text, start, end)


def too_long(place: str, start: int, end: int, limit: int) -> Rejected:
    """Return the rejection of a record that takes more than ``limit`` bytes."""
    reason = f"{place}: the record is longer than {limit:,} bytes: split it, or raise data.record_bytes"
    return Rejected(reason, start, end)


def not_utf8(file: str, position: int, start: int, end: int) -> Rejected:
    """Return the rejection of a record whose byte at ``position`` is not UTF-8."""
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
    """Return ``names`` for a sentence, many of them cut short."""
    names = list(names)
    more = ", ..." if len(names) > _MOST_NAMES_SHOWN else ""
    return f"{', '.join(map(repr, names[:_MOST_NAMES_SHOWN]))}{more}" if names else "nothing at all"


def _several(value: Value | Sequence[Value]) -> Iterable[Value]:
    return (value,) if isinstance(value, str | int | float | None) else value


def _key(value: Value) -> tuple[bool, Value]:
    return isinstance(value, bool), value


def _is_among(value: object, allowed: frozenset[tuple[bool, Value]]) -> bool:
    return isinstance(value, str | int | float | None) and _key(value) in allowed
