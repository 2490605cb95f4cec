"""The decisions of the quality rules are those of datatrove 0.10.1, as they are recorded in quality_rules.jsonl.

The texts are documentation strings of Python's standard library and texts that imitate web pages.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.transform.c4 import C4Transform
from holdfast.adapters.transform.fineweb import FinewebTransform
from holdfast.adapters.transform.gopher_quality import GopherQualityTransform
from holdfast.adapters.transform.gopher_repetition import GopherRepetitionTransform
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Dropped, Record

RULES = {
    "c4": C4Transform,
    "fineweb": FinewebTransform,
    "gopher_quality": GopherQualityTransform,
    "gopher_repetition": GopherRepetitionTransform,
}
OTHER_OPTIONS = {
    "c4": [{"min_num_sentences": 4}, {"filter_policy": False}, {"max_word_length": None}],
    "fineweb": [{"line_punct_thr": 0}, {"stop_chars": ["."]}, {"line_punct_exclude_zero": True}],
    "gopher_quality": [{"doc_words": [None, 9]}, {"stop_words": ["the"]}, {"max_symbol_word_ratio": 0.2}],
    "gopher_repetition": [{"dup_line_frac": None}, {"top_n_grams": {2: 0.2}}, {"dup_n_grams": {}}],
}
RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("quality_rules.jsonl").read_text("utf-8").splitlines()
]
kinds = pytest.mark.parametrize("kind", RULES)


def records():
    return [Record(case["text"], {"id": number}) for number, case in enumerate(RECORDED)]


@kinds
def test_decisions_are_those_recorded(kind):
    """Each recorded text is dropped by the recorded rule, or kept."""
    results = RULES[kind]().apply(records())
    found = [result.reason if isinstance(result, Dropped) else None for result in results]
    assert found == [case[kind] for case in RECORDED]
    assert len({*found}) > 3


def test_c4_leaves_the_text_recorded():
    """The text that C4's rules leave is the recorded one."""
    results = C4Transform().apply(records())
    found = [None if isinstance(r, Dropped) else sha256(r.text.encode()).hexdigest()[:16] for r in results]
    assert found == [case.get("left") for case in RECORDED]
    assert sum(case["c4"] is None for case in RECORDED) > 50


@kinds
def test_a_result_depends_on_its_record_alone(kind):
    """Each record alone, in another order, in threads and after other records gives the same result."""
    transform, given_records = RULES[kind](), records()[::3]
    together = list(transform.apply(given_records))
    assert [transform.apply([record])[0] for record in given_records] == together
    assert list(RULES[kind]().apply(given_records[::-1])) == together[::-1]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: list(transform.apply(given_records)), range(4))) == [together] * 4
    assert list(transform.apply([])) == []


@kinds
@settings(max_examples=30)
@given(texts=st.lists(st.text(st.sampled_from("ab .\n#-\u2026{'\u0416\u4eac")), max_size=5))
def test_any_text_has_one_result(kind, texts):
    """There is one result for each record; what is kept keeps its fields."""
    given_records = [Record(text, {"n": 1}) for text in texts]
    results = RULES[kind]().apply(given_records)
    assert len(results) == len(texts)
    assert all(isinstance(result, Dropped) or result.fields == {"n": 1} for result in results)
    assert [RULES[kind]().apply([record])[0] for record in given_records] == list(results)


@kinds
def test_a_drop_has_a_reason_and_a_sentence(kind):
    """The reason begins with the kind; the sentence ends with a full stop."""
    drops = [result for result in RULES[kind]().apply(records()) if isinstance(result, Dropped)]
    assert drops
    assert [drop for drop in drops if not drop.reason.startswith(f"{kind}.")] == []
    assert [drop for drop in drops if not drop.detail.endswith(".") or drop.ends_run] == []


@kinds
def test_the_fingerprint_is_that_of_the_options(kind):
    """Equal options give equal fingerprints, other options another one."""
    fingerprints = [RULES[kind](**options).fingerprint() for options in ({}, *OTHER_OPTIONS[kind])]
    assert len(set(fingerprints)) == 4
    assert RULES[kind]().fingerprint() == fingerprints[0]
    assert RULES[kind]().fields == ()


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("gopher_quality", {"doc_words": [-1, 9]}, ["doc_words", "gopher_quality", "from 0 on", "-1"]),
        ("gopher_quality", {"doc_words": 5}, ["doc_words", "the least and the most"]),
        ("gopher_quality", {"stop_words": "the"}, ["stop_words", "list of texts"]),
        ("gopher_repetition", {"top_n_grams": [2, 0.1]}, ["top_n_grams", "{5: 0.15}"]),
        ("gopher_repetition", {"dup_n_grams": {0: 0.1}}, ["dup_n_grams", "from 1 on"]),
        ("gopher_repetition", {"dup_n_grams": {5: True}}, ["dup_n_grams", "from 0 on"]),
        ("c4", {"filter_policy": 1}, ["filter_policy", "true or false"]),
        ("fineweb", {"stop_chars": [""]}, ["stop_chars", "not empty"]),
        ("fineweb", {"new_line_ratio": float("nan")}, ["new_line_ratio", "nan"]),
    ],
)
def test_wrong_options_are_refused(kind, options, words):
    """An option of another type or range is a configuration error in one sentence, which names it."""
    with pytest.raises(ConfigurationError) as error:
        RULES[kind](**options)
    assert [word for word in words if word not in str(error.value)] == []


def test_sizes_may_be_texts():
    """Keys of mappings are texts in some formats of settings: they count as numbers."""
    assert (
        GopherRepetitionTransform(dup_n_grams={"5": 0.1}).fingerprint()
        == GopherRepetitionTransform(dup_n_grams={5: 0.1}).fingerprint()
    )
