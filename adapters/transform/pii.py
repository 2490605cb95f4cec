"""Replaces personal data in documents, or drops the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.transform.checked_options import mapping_of, one_of, some_of
from holdfast.adapters.transform.pii_patterns import account_numbers, addresses, emails, phone_numbers
from holdfast.adapters.transform.spans import replaced
from holdfast.adapters.transform.transform_options import fingerprint_of, unicode_text
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KIND = "pii"
_VERSION = 1
_FINDERS = {"email": emails, "ip": addresses, "phone": phone_numbers, "iban": account_numbers}


@final
class PiiTransform(RecordTransform):
    """Replaces personally identifiable information by fixed marks, or drops the records that contain it.

    ``find`` are some of email, ip (public addresses of version 4 and 6), phone and iban. With the ``action`` replace,
    each find becomes the text that ``marks`` has for its kind, by default the kind in angle brackets, such as
    <email>. With drop, the reason is ``pii.`` and the first kind of this list that was found, such as ``pii.email``.
    The functions of ``pii_patterns`` say which spellings are found, and the sources. Raises ``ConfigurationError`` if
    an option is wrong.
    """

    def __init__(
        self,
        *,
        find: Sequence[str] = tuple(_FINDERS),
        action: Literal["replace", "drop"] = "replace",
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self._find = some_of(_KIND, "find", find, _FINDERS)
        self._drops = one_of(_KIND, "action", action, ("replace", "drop")) == "drop"
        given = mapping_of(_KIND, "marks", marks, _FINDERS)
        self._marks = {
            kind: unicode_text(_KIND, f"{kind} of marks", given.get(kind, f"<{kind}>")) for kind in self._find
        }

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [self._judged(record) for record in records]

    def _judged(self, record: Record) -> Record | Dropped:
        text = record.text
        found = {kind: spans for kind in self._find if (spans := [*_FINDERS[kind](text)])}
        if not found:
            return record
        if self._drops:
            kind, spans = next(iter(found.items()))
            return Dropped(f"{_KIND}.{kind}", f"the number of texts that look like {kind} is {len(spans)}")
        text = replaced(text, [(span, self._marks[kind]) for kind, spans in found.items() for span in spans])
        return Record(text, record.fields, record.scores, record.warnings)

    @override
    def fingerprint(self) -> str:
        marks = None if self._drops else self._marks
        return fingerprint_of(_KIND, _VERSION, find=self._find, drops=self._drops, marks=marks)
