"""Replaces personal data in documents, or drops the documents."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.transform.rule_options import fingerprint_of, mapping_of, one_of, some_of, unicode_text
from holdfast.adapters.transform.text_statistics import replaced
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.adapters.transform.text_statistics import Span

_LOCAL_CHARACTERS = 64  # at most before the @ (RFC 5321, 4.5.3.1.1)
_DOMAIN_CHARACTERS = 255  # at most behind it (RFC 5321, 4.5.3.1.2)
_ATOM = r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])"
_LOCAL_PART = re.compile(rf"\b{_ATOM}(?:\.{_ATOM})*\Z", re.IGNORECASE | re.ASCII)
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+{_LABEL}|\[(?:{_OCTET}\.){{3}}{_OCTET}\]", re.IGNORECASE | re.ASCII)
_IPV4 = re.compile(rf"(?<![0-9A-Za-z.])(?:{_OCTET}\.){{3}}{_OCTET}(?![0-9A-Za-z]|\.[0-9])")
_IPV4_CORE = re.compile(r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")
# 2000::/3 is all that has been assigned to global unicast (IANA: IPv6 address space)
_IPV6 = re.compile(
    r"(?<![0-9A-Za-z:.])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){1,6}(?::[0-9A-Fa-f]{1,4}|::)"
    r"(?![0-9A-Za-z]|:[0-9A-Fa-f:])"
)
_IPV6_CORE = re.compile(r":(?<=[23][0-9A-Fa-f]{3}:)[0-9A-Fa-f]{0,4}:")
# E.164: a plus sign and 8 to 15 digits, of which the first ones are the country code
_INTERNATIONAL = re.compile(
    r"\+(?<![0-9A-Za-z+]\+)[1-9](?:(?: ?\(|\)[ -]?|[ .-])?[0-9]){7,14}(?![0-9A-Za-z]|[.-][0-9])"
)
# North American Numbering Plan: (NXX) NXX-XXXX, NXX-NXX-XXXX and NXX.NXX.XXXX, where N is 2 to 9
_AMERICAN = re.compile(
    r"(?<![0-9A-Za-z+.-])(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}([.-]))[2-9][0-9]{2}(?(1)\1|-)[0-9]{4}"
    r"(?![0-9A-Za-z]|[.-][0-9])"
)
_AMERICAN_CORES = (
    re.compile(r"-(?<=[2-9][0-9]{2}-)[0-9]{4}(?![0-9A-Za-z])"),
    re.compile(r"\.(?<=[2-9][0-9]{2}\.)[0-9]{4}(?![0-9A-Za-z])"),
)
_AMERICAN_CHARACTERS = 11  # at most before the last separator, as in "1 (212) 555"
_IBAN = re.compile(r"(?<![0-9A-Za-z])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}")
_IBAN_START = b"AA00"
_IBAN_SHAPE = bytes.maketrans(b"123456789BCDEFGHIJKLMNOPQRSTUVWXYZ", b"0" * 9 + b"A" * 25)

# addresses that no host of the internet has: IANA's registries of special-purpose addresses, and multicast (RFC 5771)
_NOT_PUBLIC = [
    ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
]
# characters of an IBAN by country (SWIFT: IBAN registry)
_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FK FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}


def emails(text: str) -> Iterator[Span]:
    """Yield the first and the last position of each e-mail address in ``text``.

    The expression is FineWeb's (datatrove, formatters/pii.py), but capital letters count too, letters outside ASCII
    end an address, and the parts before and behind the @ are at most as long as RFC 5321 allows, so that the time is
    proportional to the length of the text.
    """
    place = end = 0
    while (place := text.find("@", place)) >= 0:
        domain = _DOMAIN.match(text, place + 1, place + 1 + _DOMAIN_CHARACTERS)
        if domain and (local := _LOCAL_PART.search(text, max(end, place - _LOCAL_CHARACTERS), place)):
            end = domain.end()
            yield local.start(), end
        place = max(end, place + 1)


def addresses(text: str) -> Iterator[Span]:
    """Yield the first and the last position of each public IPv4 or IPv6 address in ``text``.

    The expression for IPv4 is FineWeb's (datatrove, formatters/pii.py), but parts of longer names and numbers, such as
    v1.2.3.4 and 1.2.3.4.5, do not count.
    """
    for core, pattern, before, behind in ((_IPV4_CORE, _IPV4, 3, 4), (_IPV6_CORE, _IPV6, 4, 41)):
        end = 0
        while place := core.search(text, end):
            match = pattern.search(text, max(end, place.start() - before), place.end() + behind)
            end = place.end() if match is None else max(place.end(), match.end())
            if match is not None and _is_public(match[0]):
                yield match.span()


def _is_public(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def phone_numbers(text: str) -> Iterator[Span]:
    """Yield the first and the last position of each phone number in ``text``.

    Numbers with a plus sign have 8 to 15 digits (ITU-T E.164); North American ones may be written without a country
    code, if their groups are separated.
    """
    end = 0
    for span in sorted([*(match.span() for match in _INTERNATIONAL.finditer(text)), *_american_numbers(text)]):
        if span[0] >= end:
            yield span
            end = span[1]


def _american_numbers(text: str) -> Iterator[Span]:
    for core in _AMERICAN_CORES:
        for place in core.finditer(text):
            match = _AMERICAN.search(text, max(0, place.start() - _AMERICAN_CHARACTERS), place.end() + 2)
            if match and match.end() == place.end():
                yield match.span()


def account_numbers(text: str) -> Iterator[Span]:
    """Yield the first and the last position of each IBAN in ``text``, written with or without single spaces.

    The country, its length and the check digits must be right (ISO 13616, ISO 7064 mod 97-10).
    """
    place = 0
    if _IBAN_START not in text.encode().translate(_IBAN_SHAPE):
        return
    while match := _IBAN.search(text, place):
        first, place = match.start(), match.start() + 2
        last = first + _characters_of(match[0])
        number = text[first:last].replace(" ", "")
        if number and not text[last : last + 1].isalnum() and _is_checked(number):
            yield first, last
            place = last


def _characters_of(candidate: str) -> int:
    """Return the number of characters, spaces included, of the account number that ``candidate`` begins with, or 0."""
    left = _IBAN_LENGTHS.get(candidate[:2], 0)
    for number, character in enumerate(candidate, 1):
        left -= character != " "
        if left == 0:
            return number
    return 0


def _is_checked(number: str) -> bool:
    return int("".join(str(int(each, 36)) for each in number[4:] + number[:4])) % 97 == 1


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
        spans_by_kind = {kind: spans for kind in self._find if (spans := [*_FINDERS[kind](text)])}
        if not spans_by_kind:
            return record
        if self._drops:
            kind, spans = next(iter(spans_by_kind.items()))
            return Dropped(f"{_KIND}.{kind}", f"the number of texts that look like {kind} is {len(spans)}")
        text = replaced(text, [(span, self._marks[kind]) for kind, spans in spans_by_kind.items() for span in spans])
        return Record(text, record.fields, record.scores, record.warnings)

    @override
    def fingerprint(self) -> str:
        marks = None if self._drops else self._marks
        return fingerprint_of(_KIND, _VERSION, find=self._find, drops=self._drops, marks=marks)
