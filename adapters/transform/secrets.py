"""Replaces keys and tokens in documents, or drops the documents."""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of, finite_number, one_of, some_of, unicode_text
from holdfast.adapters.transform.text_statistics import replaced
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.adapters.transform.text_statistics import Span

_ALONE = r"(?![0-9A-Za-z])"
_PATTERNS = {
    # AWS: IAM user guide, Unique identifiers; the rest is base32, as in the rule aws-access-token of gitleaks
    "aws": [rf"A(?<![0-9A-Za-z]A)(?:KIA|SIA|BIA|CCA|3T[A-Z0-9])[A-Z2-7]{{16}}{_ALONE}"],
    # GitHub: Behind GitHub's new authentication token formats, 2021; About authentication to GitHub
    "github": [
        rf"gh(?<![0-9A-Za-z]gh)[pousr]_[0-9A-Za-z]{{36,251}}{_ALONE}",
        rf"github_pat_[0-9A-Za-z]{{22}}_[0-9A-Za-z]{{59}}{_ALONE}",
    ],
    # Slack: API documentation, Token types; Sending messages using incoming webhooks
    "slack": [
        rf"xox(?<![0-9A-Za-z]xox)[abeoprs][.-](?:xox[bp]-)?[0-9][0-9A-Za-z-]{{14,250}}{_ALONE}",
        rf"xapp-[0-9]-[0-9A-Za-z-]{{15,250}}{_ALONE}",
        rf"hooks\.slack\.com/services/T[0-9A-Z]{{5,20}}/B[0-9A-Z]{{5,20}}/[0-9A-Za-z]{{20,30}}{_ALONE}",
    ],
    # Google Cloud: Manage API keys; the length is that of the rule gcp-api-key of gitleaks
    "google": [r"AIza(?<![0-9A-Za-z]AIza)[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"],
    # Stripe: documentation, API keys
    "stripe": [rf"k_(?<=[sr]k_)(?<![0-9A-Za-z].k_)(?:live|test)_[0-9A-Za-z]{{12,247}}{_ALONE}"],
    # RFC 7468, RFC 4880 6.2; a block that the document cuts off counts too
    "private_key": [
        (
            r"-----BEGIN (?:[0-9A-Z]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"(?=(?:[^-]|-(?!----)){0,400}?[0-9A-Za-z+/]{32})(?:[^-]|-(?!----)){32,20000}"
            r"(?:-----END (?:[0-9A-Z]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)"
        )
    ],
    # RFC 7519: a header and claims, both JSON objects in base64url, and a signature
    "jwt": [r"eyJ(?<![0-9A-Za-z_-]eyJ)[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{20,}"],
}
_COMPILED = {kind: [re.compile(pattern) for pattern in patterns] for kind, patterns in _PATTERNS.items()}

# gitleaks, rule generic-api-key: a telling name, a sign of assignment, and a value that looks random
_VALUE = r"\s{0,3}[\"'`]?(?P<value>[0-9A-Za-z+/_-]{20,150}={0,2})(?![0-9A-Za-z+/_=.-])"
_ASSIGNED = [re.compile(f"={_VALUE}"), re.compile(f":{_VALUE}"), re.compile(f"=>{_VALUE}")]
_TELLING_NAME = re.compile(
    r"(?:key|secret|token|passwd|password|credentials?|auth)(?:[_.-]?[0-9a-z]{1,12})?[\"'`\]]{0,2}\s{0,3}:?\Z",
    re.IGNORECASE,
)
_NAME_CHARACTERS = 40  # at most before the sign of assignment

SECRETS = (*_PATTERNS, "generic")

_LONG_RUN = b"a" * 20
_WITHOUT = bytes(range(256)).translate(None, b"+/=-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_RUNS = bytes(0x20 if byte in _WITHOUT else ord("a") for byte in range(256))


def may_have_secrets(text: str) -> bool:
    """Return whether ``text`` has 20 letters, digits and signs of base64 in a row, as each secret has."""
    return _LONG_RUN in text.encode().translate(_RUNS)


def secrets_in(text: str, kind: str, min_entropy: float) -> Iterator[Span]:
    """Yield the first and the last position of each secret of ``kind``, one of ``SECRETS``, in ``text``.

    ``min_entropy`` is for the kind generic only, in bits a character.
    """
    if kind == "generic":
        yield from _assigned_values(text, min_entropy)
    else:
        for pattern in _COMPILED[kind]:
            for match in pattern.finditer(text):
                yield match.start() - (kind == "stripe"), match.end()  # its search begins behind the first letter


def _assigned_values(text: str, min_entropy: float) -> Iterator[Span]:
    for pattern in _ASSIGNED:
        for match in pattern.finditer(text):
            value = match["value"]
            name = text[max(0, match.start() - _NAME_CHARACTERS) : match.start()]
            if _looks_random(value, min_entropy) and _TELLING_NAME.search(name):
                yield match.span("value")


def _looks_random(value: str, min_entropy: float) -> bool:
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    shares = [count / len(value) for count in Counter(value).values()]
    return has_both and -sum(share * log2(share) for share in shares) >= min_entropy


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
        spans_by_kind = {kind: spans for kind in self._find if (spans := [*secrets_in(text, kind, self._min_entropy)])}
        if not spans_by_kind:
            return record
        if self._drops:
            kind, spans = next(iter(spans_by_kind.items()))
            return Dropped(f"{_KIND}.{kind}", f"the number of texts that look like a secret of {kind} is {len(spans)}")
        text = replaced(text, [(span, self._mark) for spans in spans_by_kind.values() for span in spans])
        return Record(text, record.fields, record.scores, record.warnings)

    @override
    def fingerprint(self) -> str:
        mark = None if self._drops else self._mark
        entropy = self._min_entropy if "generic" in self._find else None
        options = {"find": self._find, "drops": self._drops, "mark": mark, "min_entropy": entropy}
        return fingerprint_of(_KIND, _VERSION, **options)
