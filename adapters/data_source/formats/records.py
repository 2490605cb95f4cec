"""Parts, text fields and filters of record files, and the reports about bad records, for all formats."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Self, final

from holdfast.domain.data.data_files import FIRST_RULES, LATEST_RULES
from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import (
    RECORD_FIELDS,
    SHARED_FIELDS,
    completion_of,
    completion_text,
    conversation_of,
    conversation_text,
    unused_in_conversation,
)
from holdfast.domain.training.preference_record import (
    PREFERENCE_FIELDS,
    preference_of,
    preference_text,
    unused_in_preference,
)
from holdfast.domain.training.record_marks import as_read_before, unused_fields
from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

Value = str | int | float | bool | None
Task = Literal["text", "chat", "completion", "preference"]

BYTE_ORDER_MARK = "\ufeff"

_READING = 2  # increase it when the same bytes give different documents
# increase one when the same records of a task give different documents
_CONVERTING: Mapping[Task, int] = MappingProxyType({"chat": 2, "preference": 2, "completion": 1})
_USUAL_TEXT = "text"
_PRETOKENIZED = "input_ids"
_MOST_NAMES_SHOWN = 10
_COLUMNS: Mapping[Task, str] = MappingProxyType(
    {
        "chat": "set data.text_field to that of the messages, or call two of them prompt and completion",
        "completion": "call two of them prompt and completion",
        "preference": "call three of them prompt, chosen and rejected",
    }
)


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


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """How text files are read, besides their fields.

    ``rules`` are those of the time when a run began. ``encoding`` is the name of one, or ``auto`` for UTF-8 unless a
    byte order mark tells another. ``delimiter`` and ``quote`` are those of csv and tsv files; ``auto`` means the usual
    delimiter unless only another one gives the columns that are read, an empty quote that nothing is quoted. A text
    file of a folder with up to ``document_bytes`` is one document. With a ``separator`` texts are split into documents
    there instead.
    """

    rules: int = LATEST_RULES
    encoding: str = "auto"
    delimiter: str = "auto"
    quote: str = '"'
    document_bytes: int = 4 << 20
    separator: str | None = None

    def to_json(self, kinds: Collection[str]) -> list[object]:
        """Return what of the reading matters for ``kinds``: text, table, plain text, and folder for whole texts."""
        values: list[object] = []
        if self.rules > FIRST_RULES and "table" in kinds:
            values.append(["table", self.delimiter, self.quote])
        if self.rules > FIRST_RULES and "folder" in kinds:
            values.append(["document", self.document_bytes])
        if self.encoding != "auto" and "text" in kinds:
            values.append(["encoding", self.encoding])
        if self.separator is not None and "plain" in kinds:
            values.append(["separator", self.separator])
        return values


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

    ``kept`` are the names of other fields that are handed on with the document. ``task`` says what the document is:
    the text field, or the ``chat``, ``completion`` or ``preference`` that several fields make up, as JSON. Their
    messages are in the text field if it is not the usual one. With ``gives_blank`` a record whose text is empty or
    white space alone is a document without text; otherwise it is left out. ``is_former`` are records by the first
    rules.
    """

    text: str
    filter: tuple[tuple[str, frozenset[tuple[bool, Value]]], ...] = ()
    kept: tuple[str, ...] = ()
    task: Task = "text"
    is_former: bool = False
    gives_blank: bool = False

    @classmethod
    def choose(cls, text: str, allowed: Mapping[str, Value | Sequence[Value]] | None) -> Self:
        """Return the fields with the text field ``text`` and the filter ``allowed``, one or more values per name."""
        return cls(text, tuple((name, frozenset(map(_key, _several(some)))) for name, some in (allowed or {}).items()))

    @property
    def content(self) -> tuple[str, ...]:
        """Return the names of the fields that make up the document; for a task other than text some may be missing."""
        if self.task == "text":
            return (self.text,)
        if self.task == "preference":
            return PREFERENCE_FIELDS if self.text == _USUAL_TEXT else (self.text, *PREFERENCE_FIELDS)
        return RECORD_FIELDS if self.text == _USUAL_TEXT else (self.text, *SHARED_FIELDS)

    def content_of(self, record: Mapping[str, object]) -> str:
        """Return the document of ``record`` for a task other than text, as JSON; raises ``DataError`` without a place.

        The message is a sentence that says what is wrong with the record.
        """
        if self.task == "completion":
            return completion_text(*completion_of(record))
        messages_field = None if self.text == _USUAL_TEXT else self.text
        if self.is_former:
            record = as_read_before(record, [name for name in self.content if name not in SHARED_FIELDS])
        if self.task == "preference":
            return preference_text(preference_of(record, messages_field))
        return conversation_text(conversation_of(record, messages_field))

    def unused_in(self, record: Mapping[str, object]) -> Sequence[str]:
        """Return the fields of ``record`` and of its messages that are not used for anything, where there is a task."""
        messages_field = None if self.text == _USUAL_TEXT else self.text
        if self.is_former:
            return ()
        if self.task == "completion":
            unused = unused_fields(record, ("prompt", "completion"), ())
        else:
            find = unused_in_preference if self.task == "preference" else unused_in_conversation
            unused = find(record, messages_field)
        used = {*self.kept, *(name for name, _ in self.filter)}
        return [name for name in unused if name not in used | set(map(_head, used))]

    def keeping(self, names: Sequence[str]) -> Self:
        """Return these fields, with the fields of ``names`` handed on; that of the text is asked for blank texts."""
        text = self.text if self.task == "text" else None
        return replace(self, kept=tuple(sorted(set(names) - {text})), gives_blank=text in names)

    @property
    def names(self) -> list[str]:
        """Return the names of all fields that are read, each once, the text first."""
        return list(dict.fromkeys([*self.content, *(name for name, _ in self.filter), *self.kept]))

    def names_among(self, columns: Iterable[str]) -> list[str]:
        """Return those ``columns`` that hold ``names``, in their order: for ``a.b`` it may be a column a of structs."""
        names = set(columns)
        holders = [name if name in names or not self.is_path(name) else _head(name) for name in self.names]
        return [name for name in dict.fromkeys(holders) if name in names]

    def is_path(self, name: str) -> bool:
        """Return whether ``name``, such as ``a.b``, may stand for the member b of an object a."""
        return "." in name and (self.task == "text" if name == self.text else not self.is_former)

    def as_text(self) -> Self:
        """Return the same fields for records whose values are all text: true is the text true, True or TRUE.

        By the first rules it is True alone.
        """
        as_text = (
            (name, frozenset((False, text) for _, value in allowed for text in _texts_of(value, self.is_former)))
            for name, allowed in self.filter
        )
        return replace(self, filter=tuple(as_text))

    def text_of(self, record: Mapping[str, object]) -> tuple[bool, object]:
        """Return whether ``record`` has the text field, and its value; ``a.b`` may be the member b of an object a."""
        return self._find(record, self.text)

    def ambiguity_in(self, record: Mapping[str, object]) -> str | None:
        """Return a sentence if a name is that of a field of ``record`` and also that of a member of another field."""
        for name in self.names:
            if not self.is_former and "." in name and name in record and _member(record, name)[0]:
                return ambiguous(name)
        return None

    def _find(self, record: Mapping[str, object], name: str) -> tuple[bool, object]:
        if name in record or not self.is_path(name):
            return name in record, record.get(name)
        return _member(record, name)

    def to_json(self) -> list[object]:
        """Return the fields as JSON, equal for fields that select the same documents."""
        task = [] if self.task == "text" else [self.task, 1 if self.is_former else _CONVERTING[self.task]]
        others = (*self.kept, *(name for name, _ in self.filter))
        paths = ["paths"] if any(map(self.is_path, others)) else []
        return [self.text, sorted([name, sorted(map(repr, allowed))] for name, allowed in self.filter), *task, *paths]

    def kept_of(self, record: Mapping[str, object]) -> Mapping[str, object]:
        """Return the values of ``record`` that are handed on with its document."""
        pairs = ((name, self._find(record, name)) for name in self.kept)
        return {name: value for name, (is_there, value) in pairs if is_there}

    def wants(self, record: Mapping[str, object]) -> bool:
        """Return whether ``record`` passes the filter; a missing field counts as None."""
        return all(_is_among(self._find(record, name)[1], allowed) for name, allowed in self.filter)

    def missing(self, columns: Iterable[str], file: str) -> str | None:
        """Return a sentence if the ``columns`` of ``file`` do not include all fields, else None."""
        columns = list(columns)
        optional = () if self.task == "text" else self.content
        if optional and not any(name in columns for name in optional if name not in SHARED_FIELDS):
            wanted = shown(name for name in optional if name not in SHARED_FIELDS)
            return f"{file}: there is none of the columns {wanted}, only {shown(columns)}: {_COLUMNS[self.task]}"
        for name in self.names:
            if name not in columns and name == self.text and _PRETOKENIZED in columns:
                return f"{file}: there is no column {name!r}, but token ids in {_PRETOKENIZED!r}: set data.kind=tokens"
            if name not in columns and name not in optional:
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
        if not fields.gives_blank:
            return None
        text = ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        holder = f"the field {fields.text!r}" if fields.task == "text" else "the record"
        reason = (
            f"{place}: {holder} holds half of a surrogate pair (\\u{ord(text[error.start]):04x}) at "
            f"character {error.start}, which is not valid Unicode: repair the record or leave it out"
        )
        return Rejected(reason, start, end)
    kept = fields.kept_of(record) if record and fields.kept else None
    unused = fields.unused_in(record) if record and fields.task != "text" else ()
    return Document(text, start, end, kept, tuple(f"the field {name} is not used" for name in unused))


def record_document(
    record: Mapping[str, object], place: str, start: int, end: int, fields: Fields
) -> Document | Rejected | None:
    """Return the document that several fields of ``record`` make up, or its rejection."""
    try:
        text = fields.content_of(record)
    except DataError as error:
        return Rejected(f"{place}: {error}", start, end)
    return document(text, place, start, end, fields, record)


def too_long(place: str, start: int, end: int, limit: int) -> Rejected:
    """Return the rejection of a record that takes more than ``limit`` bytes."""
    reason = f"{place}: the record is longer than {limit:,} bytes: split it, or raise data.record_bytes"
    return Rejected(reason, start, end)


def not_utf8(file: str, position: int, start: int, end: int) -> Rejected:
    """Return the rejection of a record that is not UTF-8 at the byte ``position``."""
    reason = (
        f"{file}: byte {position} is not UTF-8; it seems to be a binary file or text in another encoding: "
        "set data.encoding, say to cp1252, convert it to UTF-8 or leave it out"
    )
    return Rejected(reason, start, end, kind="not in the encoding")


def kind_of(value: object) -> str:
    """Return JSON's name for the type of ``value``, with an article."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def shown(names: Iterable[str]) -> str:
    """Return ``names`` for a sentence, a long list shortened."""
    names = list(names)
    more = ", ..." if len(names) > _MOST_NAMES_SHOWN else ""
    return f"{', '.join(map(repr, names[:_MOST_NAMES_SHOWN]))}{more}" if names else "nothing at all"


def ambiguous(name: str) -> str:
    """Return a sentence that says that ``name``, such as ``a.b``, has two meanings in the data."""
    holder, _, member = name.partition(".")
    return f"{name!r} is the name of a field, and there is also {member!r} within {holder!r}: rename one of them"


def _head(name: str) -> str:
    return name.partition(".")[0]


def _member(record: Mapping[str, object], path: str) -> tuple[bool, object]:
    value: object = record
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return False, None
        value = value[name]
    return True, value


def _several(value: Value | Sequence[Value]) -> Iterable[Value]:
    return (value,) if isinstance(value, str | int | float | None) else value


def _texts_of(value: Value, is_former: bool) -> Iterable[str]:  # noqa: FBT001  of its only caller
    text = str(value)
    return (text, text.lower(), text.upper()) if isinstance(value, bool) and not is_former else (text,)


def _key(value: Value) -> tuple[bool, Value]:
    return isinstance(value, bool), value


def _is_among(value: object, allowed: frozenset[tuple[bool, Value]]) -> bool:
    return isinstance(value, str | int | float | None) and _key(value) in allowed
