"""Replaces keys and tokens in documents, or drops the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.transform.checked_options import finite_number, one_of, some_of
from holdfast.adapters.transform.secret_patterns import SECRETS, may_have_secrets, secrets_in
from holdfast.adapters.transform.spans import replaced
from holdfast.adapters.transform.transform_options import fingerprint_of, unicode_text
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = "secrets"
_VERSION = 1


@final
class SecretsTransform(RecordTransform):
    """Replaces secrets by a fixed ``mark``, or drops the records that contain one.

    ``find`` are some of aws, github, slack, google, stripe, private_key, jwt and generic: a value that is assigned to a
    name such as api_key or token, and has a Shannon entropy of at least ``min_entropy`` bits a character (gitleaks's
    default). With the ``action`` drop, the reason is ``secrets.`` and the first kind of this list that was found.
    ``secret_patterns`` has the spellings and their sources. Raises ``ConfigurationError`` if an option is wrong.
    """

    def __init__(
        self,
        *,
        find: Sequence[str] = SECRETS,
        action: Literal["replace", "drop"] = "replace",
        mark: str = "<secret>",
        min_entropy: float = 3.5,
    ) -> None:
        self._find = some_of(_KIND, "find", find, SECRETS)
        self._drops = one_of(_KIND, "action", action, ("replace", "drop")) == "drop"
        self._mark = unicode_text(_KIND, "mark", mark)
        self._min_entropy = finite_number(_KIND, "min_entropy", min_entropy, least=0, most=8)

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [self._judged(record) if may_have_secrets(record.text) else record for record in records]

    def _judged(self, record: Record) -> Record | Dropped:
        text = record.text
        found = {kind: spans for kind in self._find if (spans := [*secrets_in(text, kind, self._min_entropy)])}
        if not found:
            return record
        if self._drops:
            kind, spans = next(iter(found.items()))
            return Dropped(f"{_KIND}.{kind}", f"the number of texts that look like a secret of {kind} is {len(spans)}")
        text = replaced(text, [(span, self._mark) for spans in found.values() for span in spans])
        return Record(text, record.fields, record.scores, record.warnings)

    @override
    def fingerprint(self) -> str:
        mark = None if self._drops else self._mark
        entropy = self._min_entropy if "generic" in self._find else None
        options = {"find": self._find, "drops": self._drops, "mark": mark, "min_entropy": entropy}
        return fingerprint_of(_KIND, _VERSION, **options)
