"""The transform ``pii`` finds planted personal data, and leaves clean texts alone."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network
from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.transform.pii import PiiTransform, account_numbers, addresses, emails, phone_numbers
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Record
from tests.support.record_transforms import judged

EMAILS = (
    "ann@example.org",
    "Ann.Lee+news@mail.Example.CO.UK",
    "o'neil_99@x-y.de",
    "root@[8.8.8.8]",
    f"{'a' * 64}@b.cc",
)
PHONES = ("+49 30 901820", "+1 (415) 555-2671", "+44-20-7946-0958", "(415) 555-2671", "415.555.2671", "1 415-555-2671")
IBANS = (
    "DE89370400440532013000",
    "DE89 3704 0044 0532 0130 00",
    "GB82 WEST 1234 5698 7654 32",
    "NO93 8601 1117 947",
    "MT84 MALT 0110 0001 2345 MTLC AST0 01S",
)
IPS = ("8.8.8.8", "93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:81b:0:0:0:200e")
CLEAN = (
    "Meet me @ noon; the price is 3.50@ the door, and @names are no addresses.",
    "a@b, a@, @example.org, me@host and @decorator.cached are not addresses.",
    "10.0.0.1, 192.168.1.254, 127.0.0.1, 172.16.5.5, 169.254.1.1, 224.0.0.251, 0.0.0.0 and 203.0.113.9 are private.",
    "Version v1.2.3.4, 1.2.3.4.5, section 3.4.5, 300.1.1.1, 1.2.3.4a and OID 1.3.6.1.4.1.311.",
    "fe80::1, ::1, 2001:db8::7, std::vector, a::b, 10:20:30 on 2024:05:06, 2024::x and 12:2606:4700::1.",
    "Between 1914-1918 and 2020-12-31, 555-2671, 1-2-3, 115-555-2671, 415-155-2671, 415-555.2671, 20415-555-2671.",
    "+5, +49 30, 1+1, C++17, +1234567, +1234567890123456 and x+4930901820.",
    "DE88370400440532013000, ZZ89370400440532013000, DE893704004405320130, xDE89370400440532013000, AB12 CDEF.",
    "DE89 3704 0044 0532 0130 000",
)
KINDS = {"email": EMAILS, "ip": IPS, "phone": PHONES, "iban": IBANS}
FINDERS = {"email": emails, "ip": addresses, "phone": phone_numbers, "iban": account_numbers}
PLANTED = [(kind, text) for kind, texts in KINDS.items() for text in texts]
AROUND = ("{}", "Write to {} today.", "({})", "a\n{}\nb", '"{}",', "Größe: {}; 京都。")


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("kind", "planted"), PLANTED)
def test_planted_data_is_replaced(kind, planted, around):
    """Each spelling becomes the mark of its kind, and nothing around it changes."""
    assert judged(PiiTransform(), around.format(planted)) == around.format(f"<{kind}>")


@pytest.mark.parametrize("text", CLEAN)
def test_clean_text_stays(text):
    """A text that only resembles personal data is the same record afterwards."""
    record = Record(text)
    assert PiiTransform().apply([record])[0] is record


@pytest.mark.parametrize(("kind", "planted"), PLANTED)
def test_each_kind_can_be_off(kind, planted):
    """A kind that is not asked for stays, and only that."""
    others = [other for other in KINDS if other != kind]
    assert judged(PiiTransform(find=others), planted) == ("root@[<ip>]" if "[" in planted else planted)


@pytest.mark.parametrize(("kind", "planted"), PLANTED)
def test_records_with_personal_data_can_be_dropped(kind, planted):
    """The reason of a drop is the kind; the detail does not repeat the data."""
    [dropped] = PiiTransform(action="drop").apply([Record(f"Call {planted} now")])
    assert dropped.reason == f"pii.{kind}"
    assert planted not in dropped.detail


def test_the_first_kind_of_the_list_is_the_reason():
    """A record with several kinds is counted once, always under the same reason."""
    assert judged(PiiTransform(action="drop"), f"{IBANS[0]} {PHONES[0]} {IPS[0]}") == "pii.ip"


def test_marks_can_be_chosen():
    """Other marks take the place of the default ones, and may be empty."""
    transform = PiiTransform(marks={"email": "email@example.com", "ip": ""})
    text = " ".join((EMAILS[0], IPS[0], PHONES[0], EMAILS[1]))
    assert judged(transform, text) == "email@example.com  <phone> email@example.com"


FINEWEB = regex.compile(
    r"\b[a-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*@(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+"
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
)


@given(st.text("ab1.-+@ \n'", max_size=60))
def test_addresses_are_those_of_fineweb(text):
    """The search around each @ finds what FineWeb's expression finds in the whole text."""
    assert [text[first:last] for first, last in emails(text)] == FINEWEB.findall(text)


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_public_addresses_of_version_4_are_found(address):
    """Exactly the addresses that Python calls global are found, without those of multicast."""
    is_found = bool([*addresses(f"at {address}.")])
    assert is_found == (address.is_global and not address.is_multicast)


@given(st.integers(0x2 << 124, (0x4 << 124) - 1).map(lambda number: IPv6Address(number | 1)), st.booleans())
def test_public_addresses_of_version_6_are_found(address, is_long):
    """Short and long spellings of assigned global addresses are found."""
    text = address.exploded if is_long else address.compressed
    special = ("2001:db8::/32", "2001::/23", "2002::/16", "3fff::/20")
    is_special = any(address in ip_network(network) for network in special)
    assert [*addresses(f"at {text}, twice")] == ([] if is_special else [(3, 3 + len(text))])


@given(st.sampled_from([iban.replace(" ", "") for iban in IBANS]), st.data())
def test_a_wrong_digit_is_seen(iban, data):
    """An account number with one other character has a wrong check digit, so it is another number."""
    place = data.draw(st.integers(4, len(iban) - 1))
    other = data.draw(st.sampled_from("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ").filter(lambda each: each != iban[place]))
    changed = iban[:place] + other + iban[place + 1 :]
    rest = int("".join(str(int(each, 36)) for each in changed[4:] + changed[:4])) % 97
    assert [*account_numbers(changed)] == ([(0, len(changed))] if rest == 1 else [])


@given(st.lists(st.one_of(st.sampled_from([text for _, text in PLANTED]), st.text(max_size=9)), max_size=8))
def test_finds_lie_apart(parts):
    """The places of each kind are in the text, not empty, and do not overlap when they are sorted."""
    text = " ".join(parts)
    for find in FINDERS.values():
        spans = sorted(find(text))
        assert all(0 <= first < last <= len(text) for first, last in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


@pytest.mark.parametrize("bad", ["a-" * 50000 + "@", "@" * 30000, "a@" * 30000, "DE89 " * 20000, "+1 " * 30000])
def test_hostile_texts_take_no_longer(bad):
    """Repetition does not make a search take for ever: the test's time limit would end it."""
    assert judged(PiiTransform(), bad) is not None


def test_options_that_matter_are_in_the_fingerprint():
    """Another action, mark or choice is another transform; marks do not matter where records are dropped."""
    options = [{}, {"action": "drop"}, {"find": ["email"]}, {"marks": {"ip": "IP"}}]
    assert len({PiiTransform(**each).fingerprint() for each in options}) == len(options)
    dropping = PiiTransform(action="drop")
    assert PiiTransform(action="drop", marks={"ip": "IP"}).fingerprint() == dropping.fingerprint()
    assert PiiTransform(find=["iban", "phone", "ip", "email"]).fingerprint() == PiiTransform().fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"find": ["e-mail"]}, "each of find .* one of email, ip, phone, iban, not 'e-mail'"),
        ({"find": []}, "find of .* at least one entry"),
        ({"find": "email"}, "find of .* must be a list"),
        ({"action": "mask"}, "action of .* one of replace, drop, not 'mask'"),
        ({"marks": {"mail": "x"}}, "each key of marks .* not 'mail'"),
        ({"marks": {"email": 1}}, "email of marks .* valid Unicode text"),
        ({"marks": "x"}, "marks of .* must map"),
    ],
)
def test_wrong_options_are_told(options, message):
    """A wrong option is an error in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        PiiTransform(**options)
