"""The built-in transforms, how the settings choose them, and what reading does with them."""

from __future__ import annotations

import re
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.metadata import EntryPoint
from itertools import pairwise
from threading import Event

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.adapters.transform.length import LengthTransform
from holdfast.adapters.transform.memory import MemoryTransform
from holdfast.adapters.transform.normalize import NormalizeTransform
from holdfast.adapters.transform.replace import ReplaceTransform
from holdfast.application.data.record_pipeline import RecordPipeline
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.identify.record_pipeline import load_transforms
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.holdout import hash_of
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.transform import Transform
from tests.support.encoders import BYTES


def chosen(transforms, *more):
    """Return the transforms that a run with ``data.transforms`` would have."""
    return load_transforms(load_settings([], [f"data.transforms={transforms}", *more], {}).settings.data)


def read(texts, transforms, on_error="stop", rejected=None):
    """Return the texts that reading the unit ``book`` of ``texts`` leaves, each with its end-of-text taken off."""
    tokenizer = MemoryTokenizer()
    reader = TextReader(
        MemoryDataSource({"book": texts}),
        TextDocumentEncoder(tokenizer),
        RejectedRecords(on_error),
        RecordPipeline(transforms),
    )
    [unit] = reader.source.units()
    left = []
    for group in reader.tokens(unit, rejected=rejected):
        ids, offsets = group.ids, group.offsets
        left += [tokenizer.decode(ids[first:last].tolist()) for first, last in pairwise(offsets)]
    return left


@given(st.text(), st.integers(0, 8), st.integers(0, 8))
def test_length_leaves_out_what_is_shorter_or_longer(text, least, more):
    """A text stays as it is if its code points number from min_characters to max_characters, both included."""
    kept = LengthTransform(min_characters=least, max_characters=least + more)(text)
    assert kept == (text if least <= len(text) <= least + more else None)


@given(st.text(st.sampled_from("e\u0301\u00e9\ufb01\u00b2\r\n a")), st.sampled_from(["NFC", "NFKC"]))
def test_normalize_gives_one_spelling(text, form):
    """Texts that are canonically equal become one text, in the form that was asked for."""
    result = NormalizeTransform(form=form)(text)
    assert result == NormalizeTransform(form=form)(unicodedata.normalize("NFD", text))
    assert unicodedata.is_normalized(form, result)


@pytest.mark.parametrize(("form", "text"), [("NFC", "\u00e9 \ufb01 x\u00b2\na\rb\n"), ("NFKC", "\u00e9 fi x2\na\rb\n")])
def test_normalize_writes_line_ends_as_newlines(form, text):
    """Windows line ends become newlines, a lone carriage return stays; NFKC also gives up ligatures."""
    assert NormalizeTransform(form=form)("e\u0301 \ufb01 x\u00b2\r\na\rb\r\n") == text


def test_replace_substitutes_all_that_is_found():
    """Each match is replaced, with its groups where the replacement names them."""
    transform = ReplaceTransform(pattern=r"(?P<user>\w+)@\w+", replacement=r"<\g<user>>")
    assert transform("ann@home, bob@work") == "<ann>, <bob>"


@given(
    st.sampled_from(
        [r"a*", r"\b", r"(?m)^\s*|b$", r"(a|b)+?c?", r"(?i)[^\W\d_]", r"(?=a)|(?<!b)c", r"[\[a]b", r"\d{2,3}"]
    ),
    st.text(st.sampled_from("abcABC \n19[]\u00e9\u0660"), min_size=1, max_size=12),
)
def test_replace_does_what_python_does(pattern, text):
    """What Python's own regular expressions can say means the same here, also where nothing is found to replace."""
    assert ReplaceTransform(pattern=pattern, replacement=r"<\g<0>>")(text) == re.sub(pattern, r"<\g<0>>", text)


ENDLESS = "a" * 60 + "b"  # for the pattern below, which would try all of some 10**12 ways to cut it


def endless(seconds):
    return ReplaceTransform(pattern="^(a|aa)+$", replacement="", seconds=seconds)


def test_a_pattern_that_takes_for_ever_is_given_up():
    """With data.on_error=skip the document is recorded with pattern and limit, and the next one is read."""
    rejected = []
    assert read(["one", ENDLESS, "aaa", "two"], [endless(0.05)], "skip", rejected.append) == ["one", "two"]
    [record] = rejected
    assert record["position"] == 1
    named = ["book", "data.transforms[0]", "'^(a|aa)+$'", "more than 0.05 seconds", "repetition"]
    assert [name for name in named if name not in record["reason"]] == []


def test_a_pattern_that_takes_for_ever_ends_a_strict_run():
    """With data.on_error=stop the document is a data error in one sentence."""
    with pytest.raises(DataError, match=r"position 0.*takes more than 0\.05 seconds"):
        read([ENDLESS], [endless(0.05)])


def test_busy_threads_leave_a_pattern_its_time():
    """The limit is of the processor time of the thread that searches: what others take meanwhile is not counted."""
    text, seconds = "a" * 20 + "b", 0.0
    while seconds < 0.03:
        text = f"a{text}"
        began = time.thread_time()
        assert endless(60)(text) == text
        seconds = time.thread_time() - began
    block, is_over = bytes(1 << 22), Event()

    def burn():
        while not is_over.is_set():
            sha256(block).digest()

    with ThreadPoolExecutor(9) as pool:
        burning = [pool.submit(burn) for _ in range(9)]
        try:
            assert endless(3 * seconds)(text) == text
        finally:
            is_over.set()
        assert all(each.result() is None for each in burning)


@pytest.mark.parametrize(
    ("transform", "other"),
    [
        (ReplaceTransform(pattern="a", replacement="b"), ReplaceTransform(pattern="a", replacement="b", seconds=1e1)),
        (LengthTransform(min_characters=1000), LengthTransform(min_characters=1e3, max_characters=None)),
        (LengthTransform(max_characters=9), LengthTransform(min_characters=0, max_characters=9)),
        (NormalizeTransform(), NormalizeTransform(form="NFC")),
    ],
)
def test_a_default_that_is_spelled_out_is_the_same_transform(transform, other):
    """What an option is by default, and how a number is written, do not change the fingerprint."""
    assert transform.fingerprint() == other.fingerprint()


def test_another_unicode_version_is_another_fingerprint(monkeypatch):
    """Where Python's Unicode tables decide the result, their version is part of the fingerprint."""
    before = NormalizeTransform().fingerprint()
    monkeypatch.setattr("unicodedata.unidata_version", "99.0.0")
    assert NormalizeTransform().fingerprint() != before


def test_the_unicode_tables_of_regex_are_in_the_fingerprint():
    """How many characters regex knows, which grows with each Unicode version, is part of the fingerprint."""
    characters = "".join(chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000)
    known = len(regex.findall(r"\P{Cn}", characters))
    assert f'"characters": {known},' in ReplaceTransform(pattern=r"\w", replacement="").fingerprint()


def test_settings_choose_the_built_in_transforms_in_order():
    """Kinds become transforms in the order of the list; a bare name is a kind without options."""
    replace, length = "{pattern: a+, replacement: b}", "{min_characters: 2}"
    transforms = chosen(f"[normalize, {{kind: replace, options: {replace}}}, {{kind: length, options: {length}}}]")
    assert [each.fingerprint() for each in transforms] == [
        NormalizeTransform().fingerprint(),
        ReplaceTransform(pattern="a+", replacement="b").fingerprint(),
        LengthTransform(min_characters=2).fingerprint(),
    ]


@pytest.mark.parametrize(
    ("transforms", "named"),
    [
        ("[{kind: length, options: {min_chars: 5}}]", ["length", "min_chars"]),
        ("[{kind: length, options: {min_characters: '5'}}]", ["length", "min_characters", "'5'"]),
        ("[{kind: length, options: {min_characters: true}}]", ["length", "min_characters", "True"]),
        ("[{kind: length, options: {max_characters: 1.5}}]", ["length", "max_characters", "1.5"]),
        ("[{kind: length, options: {max_characters: -1}}]", ["length", "max_characters", "-1"]),
        ("[{kind: length, options: {max_characters: .inf}}]", ["length", "max_characters"]),
        ("[{kind: length, options: {min_characters: 9, max_characters: 8}}]", ["length", "9", "8"]),
        ("[length]", ["length", "min_characters", "max_characters"]),
        ("[{kind: normalize, options: {form: NFD}}]", ["normalize", "form", "NFC, NFKC", "NFD"]),
        ("[{kind: normalize, options: {form: [NFC]}}]", ["normalize", "form"]),
        ("[{kind: replace, options: {pattern: a}}]", ["replace", "replacement"]),
        ("[{kind: replace, options: {pattern: '(a', replacement: b}}]", ["replace", "pattern", "'(a'"]),
        ("[{kind: replace, options: {pattern: 'a{99999999999999}', replacement: b}}]", ["replace", "pattern"]),
        ("[{kind: replace, options: {pattern: a, replacement: '\\1'}}]", ["replace", "replacement", "'a'"]),
        ("[{kind: replace, options: {pattern: a, replacement: '\\g<x>'}}]", ["replace", "replacement", "'a'"]),
        ("[{kind: replace, options: {pattern: a, replacement: 1}}]", ["replace", "replacement", "1", "quotes"]),
        ("[{kind: replace, options: {pattern: '(?V1)a', replacement: b}}]", ["replace", "pattern", "VERSION1"]),
        ("[{kind: replace, options: {pattern: a, replacement: b, seconds: 0}}]", ["replace", "seconds", "0"]),
        ("[{kind: replace, options: {pattern: a, replacement: b, seconds: .inf}}]", ["replace", "seconds", "inf"]),
        ("[{kind: replace, options: {pattern: a, replacement: b, seconds: '5'}}]", ["replace", "seconds", "'5'"]),
        ("[{kind: replace, options: {pattern: a, replacement: b, seconds: true}}]", ["replace", "seconds", "True"]),
        ("[{kind: lenght}]", ["lenght", "length"]),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(transforms, named):
    """An unknown kind or option, or a value that cannot be, is a configuration error that names it, on one line."""
    with pytest.raises(ConfigurationError) as caught:
        chosen(transforms)
    message = str(caught.value)
    assert [name for name in named if name not in message] == []
    assert "\n" not in message


@pytest.mark.parametrize(
    "options", [{"pattern": "a", "replacement": "\ud800"}, {"pattern": "\ud800", "replacement": "a"}]
)
def test_half_a_surrogate_pair_is_refused(options):
    """What has no bytes cannot be put into a text: a pattern or replacement with half of a pair is refused."""
    with pytest.raises(ConfigurationError, match="must be valid Unicode"):
        ReplaceTransform(**options)


def test_transforms_of_tokens_are_refused():
    """Data that are tokens already have no text to transform, and saying so beats doing nothing."""
    with pytest.raises(ConfigurationError, match=r"data\.transforms"):
        chosen("[normalize]", "data.kind=tokens", "data.path=somewhere")
    assert chosen("[]", "data.kind=tokens", "data.path=somewhere") == []


class Lower(Transform):
    """What an entry point of the tests below names; ``least`` is a number."""

    def __init__(self, least=0):
        self.least = int(least)

    def __call__(self, text):
        return text.lower()

    def fingerprint(self):
        return f"lower {self.least}"


def refuse(*, least):
    """Fail as an outside package may."""
    message = f"least is {least}"
    raise ValueError(message)


def bare():
    """Give something that is no transform."""
    return "nothing"


@pytest.fixture
def offered(monkeypatch):
    """Offer this file's names as entry points of the group ``holdfast.transform``."""
    names = {"lower": "Lower", "refuse": "refuse", "bare": "bare"}
    points = [EntryPoint(name, f"{__name__}:{target}", "holdfast.transform") for name, target in names.items()]
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: points * (group == "holdfast.transform")
    )


@pytest.mark.usefixtures("offered")
def test_an_outside_transform_comes_by_entry_point():
    """A kind that is not built in is what the entry point of that name gives, with its options."""
    [transform] = chosen("[{kind: lower, options: {least: 3}}]")
    assert isinstance(transform, Lower)
    assert transform.least == 3


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("transforms", "named"),
    [
        ("[{kind: lower, options: {most: 3}}]", ["lower", "most"]),
        ("[{kind: lower, options: {least: [3]}}]", ["lower", "list"]),
        ("[{kind: refuse, options: {least: 3}}]", ["refuse", "least is 3"]),
        ("[bare]", ["bare", "str", "Transform"]),
        ("[upper]", ["upper", "lower"]),
    ],
)
def test_an_outside_transform_that_does_not_fit_is_refused(transforms, named):
    """Options that an outside transform does not take, and an entry point that gives none, are named."""
    with pytest.raises(ConfigurationError) as caught:
        chosen(transforms)
    assert [name for name in named if name not in str(caught.value)] == []


def test_documents_are_read_as_the_transforms_leave_them():
    """Each transform gets what the one before left; what one leaves out, or leaves empty, is not read."""
    transforms = [
        ReplaceTransform(pattern="[0-9]", replacement=""),
        LengthTransform(max_characters=5),
        MemoryTransform(str.upper, "upper 1"),
    ]
    assert read(["one1", "12345", "three", "six 66 six", "se7en"], transforms) == ["ONE", "THREE", "SEEN"]


def test_transforms_leave_the_hold_out_as_it_is():
    """A document's hash, by which it is held out, is that of the text as stored."""
    reader = TextReader(
        MemoryDataSource({"book": ["One", "Two"]}),
        BYTES,
        RejectedRecords("stop"),
        RecordPipeline([MemoryTransform(str.upper, "")]),
    )
    [group] = reader.tokens(reader.source.units()[0])
    assert group.tokens.hashes.tolist() == [hash_of("One"), hash_of("Two")]


def halve(text):
    """Fail on a text of odd length."""
    if len(text) % 2:
        message = f"{text} has\nno half"
        raise ValueError(message)
    return text[: len(text) // 2]


FAILURES = [
    ([MemoryTransform(str.upper, "upper"), MemoryTransform(halve, "halve")], ["ValueError: ODD has no half"]),
    (
        [MemoryTransform(str.upper, "upper"), MemoryTransform(lambda text: text.encode()[:-1] or None, "bytes")],
        ["bytes"],
    ),
]


@pytest.mark.parametrize(("transforms", "named"), FAILURES)
def test_a_transform_that_fails_ends_the_run(transforms, named):
    """With data.on_error=stop, what a transform raises or wrongly gives is a data error: file, position, transform."""
    with pytest.raises(DataError) as caught:
        read(["even", "odd"], transforms)
    message = str(caught.value)
    expected = ["book", "position", "data.transforms[1]", "MemoryTransform", "data.on_error=skip", *named]
    assert [name for name in expected if name not in message] == []
    assert "\n" not in message


def test_a_document_that_a_transform_fails_on_is_left_out():
    """With data.on_error=skip, the document is recorded with file, position and reason, and the next one is read."""
    rejected = []
    texts = ["even", "odd", "last"]
    assert read(texts, [MemoryTransform(halve, "halve")], "skip", rejected.append) == ["ev", "la"]
    [record] = rejected
    assert (record["unit"], record["position"]) == ("book", 1)
    assert "data.transforms[0]" in record["reason"]


def test_memory_that_runs_out_in_a_transform_is_no_matter_of_the_document():
    """Want of memory depends on the machine, so it ends the run whatever data.on_error says."""

    def exhaust(text):
        raise MemoryError

    with pytest.raises(MemoryError):
        read(["text"], [MemoryTransform(exhaust, "exhaust")], "skip", [].append)
