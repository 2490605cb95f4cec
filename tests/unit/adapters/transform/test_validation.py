"""The validation of records: each rule on both sides, and all of them against a slow reference."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.transform.field_rules import RULES, FieldRule, FieldRules, shown
from holdfast.adapters.transform.validation import OutlierBounds, ValidationTransform
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Dropped, Record

LACKING = "no such field"  # stands for a record without the field


def rules(*names_and_operands, action="reject", **how):
    """Return the rules of the field ``f``."""
    return FieldRules("f", tuple(FieldRule(name, operand, action) for name, operand in names_and_operands), **how)


def record(value, text="some text"):
    return Record(text, {} if value is LACKING else {"f": value})


def reasons(transform, values):
    """Return the reason for which each of ``values`` of the field ``f`` is dropped, without its prefix, or None."""
    results = transform.apply([record(value) for value in values])
    return [each.reason.removeprefix("validation.f.") if isinstance(each, Dropped) else None for each in results]


@pytest.mark.parametrize(
    ("name", "operand", "good", "bad"),
    [
        ("missing", None, ["", 0, False, []], [LACKING, None]),
        ("type", "text", ["", "a"], [1, 1.5, True, [], {}]),
        ("type", "number", [0, 1.5, -(10**400)], ["1", True, math.nan, math.inf, -math.inf, [], {}]),
        ("type", "integer", [0, -3, 3.0, 10**400], [1.5, "3", True, math.nan, math.inf]),
        ("type", "boolean", [True, False], [0, 1, "true"]),
        ("type", "list", [[], [1]], ["a", {}, 1]),
        ("type", "object", [{}, {"a": 1}], ["a", [], 1]),
        ("one_of", ["en", "de"], ["en", "de"], ["fr", "EN", "", 1, True, ["en"], {}]),
        ("one_of", [1, 2.5], [1, 1.0, 2.5], [True, "1", 2, [1]]),
        ("one_of", [True, "a"], [True, "a"], [1, False, "True"]),
        ("min", 0, [0, 0.0, 1, 10**400], [-1, -0.5, math.nan, "1", True]),
        ("max", 1.5, [1.5, 1, -math.inf], [1.6, 2, 10**400, math.nan, "1"]),
        ("min_length", 2, ["ab", "äö", [1, 2], {"a": 1, "b": 2}], ["a", "", [1], {}, 12]),
        ("max_length", 2, ["ab", "", "👍👍", [1, 2]], ["abc", [1, 2, 3], 1]),
        ("pattern", "^https?://", ["http://a", "https://b"], ["ftp://a", " http://a", "", 5]),
    ],
)
def test_each_rule_accepts_and_rejects(name, operand, good, bad):
    """Values on the good side of a rule pass and those on the other are rejected, alone and between others."""
    transform = ValidationTransform([rules((name, operand))])
    assert reasons(transform, good) == [None] * len(good)
    assert reasons(transform, bad) == [name] * len(bad)
    for value in good:
        assert reasons(transform, [value]) == [None]
    for value in bad:
        assert reasons(transform, [value]) == [name]
        assert reasons(transform, [good[0], value, good[-1]]) == [None, name, None]


def test_null_is_missing_unless_it_is_allowed():
    """A nullable field may be null, and may still not be absent; null meets no other rule."""
    nullable = ValidationTransform([rules(("missing", None), ("type", "text"), is_nullable=True)])
    assert reasons(nullable, [None, LACKING, "a", 1]) == [None, "missing", None, "type"]


def test_a_missing_value_is_allowed_without_its_rule():
    """Without the rule ``missing``, an absent field and null violate no rule."""
    transform = ValidationTransform([rules(("type", "number"), ("min", 5), ("one_of", [6]))])
    assert reasons(transform, [LACKING, None, 6, 7]) == [None, None, None, "one_of"]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "missing"),
    [
        (
            "number",
            ["1", " -2.5 ", "1e3", ".5", "5."],
            ["a", "1_000", "nan", "inf", "1e999", "0x1", "\u0661"],
            ["", " "],
        ),
        ("integer", ["1", " +2", "3.0", "1e3"], ["2.5", "a", "1_000", "9" * 5000], ["", "\t"]),
        ("boolean", ["true", "False", " TRUE "], ["yes", "1", "wahr"], ["", " "]),
    ],
)
def test_values_are_read_from_their_spelling(kind, good, bad, missing):
    """With ``is_from_text`` a spelled value has its type, and blank text is a missing value; without it is text."""
    spelled = ValidationTransform([rules(("missing", None), ("type", kind), is_from_text=True)])
    assert reasons(spelled, [*good, *bad, *missing]) == [
        *[None] * len(good),
        *["type"] * len(bad),
        *["missing"] * len(missing),
    ]
    assert reasons(ValidationTransform([rules(("type", kind))]), good) == ["type"] * len(good)


def test_spelled_numbers_meet_the_bounds():
    """The bounds and the list of values compare the number, not its spelling."""
    transform = ValidationTransform(
        [rules(("type", "number"), ("one_of", [1, 5]), ("min", 2), is_from_text=True)],
    )
    assert reasons(transform, ["5.0", "1", "7"]) == [None, "min", "one_of"]


def test_rules_of_the_text_check_the_text():
    """The rules under the name of the text see the document; the source need not read a field for them."""
    transform = ValidationTransform([FieldRules("body", (FieldRule("min_length", 4, "reject"),))], text_field="body")
    dropped, kept = transform.apply([Record("abc", {"body": "long enough"}), Record("abcd")])
    assert isinstance(dropped, Dropped)
    assert dropped.reason == "validation.body.min_length"
    assert kept == Record("abcd")
    assert list(transform.fields) == []


def test_only_fields_with_rules_are_read():
    """A field without a rule costs the source nothing."""
    checked = FieldRules("b", (FieldRule("type", "text", "warn"),))
    assert list(ValidationTransform([FieldRules("c", ()), checked]).fields) == ["b"]


def test_actions_warn_reject_and_stop():
    """A warning is added to the record, a rejection drops it, and a stop also ends the run and says what to do."""
    fields = [
        FieldRules("a", (FieldRule("max", 1, "warn"), FieldRule("min", 0, "reject"))),
        FieldRules("b", (FieldRule("type", "text", "stop"),)),
        FieldRules("c", (FieldRule("type", "text", "warn"),)),
    ]
    transform = ValidationTransform(fields)
    fine, warned, dropped, ended = transform.apply(
        [
            Record("t", {"a": 1}),
            Record("t", {"a": 2, "c": 5}, {"s": 1.0}, ("earlier",)),
            Record("t", {"a": -1, "c": 5}),
            Record("t", {"a": -1, "b": 5}),
        ]
    )
    assert fine == Record("t", {"a": 1})
    assert warned.warnings == ("earlier", "validation.a.max", "validation.c.type")
    assert (warned.text, warned.fields, warned.scores) == ("t", {"a": 2, "c": 5}, {"s": 1.0})
    assert dropped == Dropped("validation.a.min", "the field 'a' holds -1, which is below min, 0")
    assert (ended.reason, ended.ends_run) == ("validation.b.type", True)
    assert ended.detail == (
        "the field 'b' holds 5, which is a number, not text: repair the record, or change data.validation.fields.b"
    )


def test_the_first_violation_in_order_is_the_reason():
    """Fields are checked by name and rules in their own order, however they are listed."""
    a, b = rules(("max", 0), ("type", "integer")), FieldRules("b", (FieldRule("missing", None, "reject"),))
    for fields in ([a, b], [b, a]):
        assert reasons(ValidationTransform(fields), [1.5, 1]) == ["validation.b.missing"] * 2
    assert reasons(ValidationTransform([a]), [1.5, 1]) == ["type", "max"]


@pytest.mark.parametrize(
    ("name", "operand", "value", "detail"),
    [
        ("missing", None, LACKING, "the field 'f' is missing"),
        ("missing", None, None, "the field 'f' is null"),
        ("type", "number", "x", "the field 'f' holds 'x', which is text, not a finite number"),
        ("type", "integer", 1.5, "the field 'f' holds 1.5, which is a number, not a whole number"),
        ("type", "list", {}, "the field 'f' holds {}, which is an object, not a list"),
        ("one_of", ["en"], "fr", "the field 'f' holds 'fr', which is not one of ['en']"),
        ("max", 0.25, 1, "the field 'f' holds 1, which is above max, 0.25"),
        ("min_length", 5, "abc", "the field 'f' holds 'abc', which has the length 3, below min_length, 5"),
        ("max_length", 1, [1, 2], "the field 'f' holds [1, 2], which has the length 2, above max_length, 1"),
        ("pattern", "^a", "b", "the field 'f' holds 'b', which does not match the pattern '^a'"),
    ],
)
def test_the_detail_names_field_value_and_rule(name, operand, value, detail):
    """The clause of a dropped record says what its field holds and which rule this violates."""
    [dropped] = ValidationTransform([rules((name, operand))]).apply([record(value)])
    assert dropped.detail == detail


@pytest.mark.parametrize("value", ["x" * 10**6, ["long" * 50] * 50, {"key" * 50: ["v" * 99]}, 10**300, "\n\x1b\ud800"])
def test_a_long_value_is_shortened(value):
    """A value is shown on one printable line of at most 80 characters."""
    assert len(shown(value)) <= 80
    assert shown(value).isprintable()


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (FieldRule("minimum", 1, "reject"), "minimum"),
        (FieldRule("min", 1, "drop"), "drop"),
        (FieldRule("type", "string", "reject"), "string"),
        (FieldRule("pattern", "(a", "reject"), "unterminated"),
    ],
)
def test_wrong_rules_are_refused(rule, named):
    """An unknown rule, action or type, and a pattern that does not compile, are configuration errors that name it."""
    with pytest.raises(ConfigurationError, match=named):
        ValidationTransform([FieldRules("f", (rule,))])


# --- against a reference that looks at one value and one rule at a time

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, 2.0, -1.5, math.nan, math.inf, 1e300, 10**400])
    | st.sampled_from(["", "a", "ab", "abc", "http://a", "en", "5", "true", " "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
operands = {
    "missing": st.none(),
    "type": st.sampled_from(["text", "number", "integer", "boolean", "list", "object"]),
    "one_of": st.lists(st.sampled_from(["a", "en", 1, 2.0, True, 0, False]), min_size=1, max_size=3),
    "min": st.sampled_from([-1, 0, 1.5]),
    "max": st.sampled_from([-1, 0, 1.5]),
    "min_length": st.integers(0, 3),
    "max_length": st.integers(0, 3),
    "pattern": st.sampled_from(["a", "^a", "b$", "^$", "[a-z]+://"]),
}


@st.composite
def schemas(draw):
    chosen = draw(st.lists(st.sampled_from(RULES), unique=True, max_size=5))
    return tuple(FieldRule(n, draw(operands[n]), draw(st.sampled_from(["reject", "warn", "stop"]))) for n in chosen)


def fits(rule, value):  # noqa: C901, PLR0911  a table of the rules
    is_bool = isinstance(value, bool)
    is_number = isinstance(value, int | float) and not is_bool
    match rule.name, rule.operand:
        case "type", "text":
            return isinstance(value, str)
        case "type", "number":
            return is_number and (isinstance(value, int) or math.isfinite(value))
        case "type", "integer":
            return is_number and (isinstance(value, int) or (math.isfinite(value) and value == math.floor(value)))
        case "type", "boolean":
            return is_bool
        case "type", kind:
            return isinstance(value, {"list": list, "object": dict}[kind])
        case "one_of", allowed:
            return any(value == one and isinstance(one, bool) == is_bool for one in allowed)
        case "min", bound:
            return is_number and value >= bound
        case "max", bound:
            return is_number and value <= bound
        case "min_length", size:
            return isinstance(value, str | list | dict) and len(value) >= size
        case "max_length", size:
            return isinstance(value, str | list | dict) and len(value) <= size
        case "pattern", pattern:
            return isinstance(value, str) and re.search(pattern, value) is not None
    raise AssertionError(rule)


def reference(schema, value, *, is_nullable):
    """Return the reason for the drop, whether it ends the run, and the warnings."""
    broken = []
    ordered = sorted(schema, key=lambda rule: RULES.index(rule.name))
    if value is None or value is LACKING:
        if not (value is None and is_nullable):
            broken = [rule for rule in ordered if rule.name == "missing"]
    else:
        for rule in ordered:
            if rule.name != "missing" and not fits(rule, value):
                broken.append(rule)
                if rule.name == "type":
                    break
    for action in ("stop", "reject"):
        for rule in broken:
            if rule.action == action:
                return rule.name, action == "stop", ()
    return None, False, tuple(rule.name for rule in broken)


def seen(result):
    prefix = "validation.f."
    if isinstance(result, Dropped):
        return result.reason.removeprefix(prefix), result.ends_run, ()
    return None, False, tuple(warning.removeprefix(prefix) for warning in result.warnings)


@given(schemas(), st.lists(json_values | st.just(LACKING), max_size=6), st.booleans())
def test_a_batch_is_judged_as_the_reference_judges_each_value(schema, values, is_nullable):
    """Many values at a time, one at a time, and the slow reference agree on reason, end of the run and warnings."""
    transform = ValidationTransform([FieldRules("f", schema, is_nullable=is_nullable)])
    wanted = [reference(schema, value, is_nullable=is_nullable) for value in values]
    records = [record(value) for value in values]
    assert [seen(result) for result in transform.apply(records)] == wanted
    assert [seen(transform.apply([each])[0]) for each in records] == wanted


# --- outliers and identity

BOUNDS = [OutlierBounds("length", 3, 10, "reject"), OutlierBounds("symbols", None, 0.5, "warn")]


def test_outliers_are_rejected_or_warned_about():
    """The bounds themselves are allowed; beyond them the reason names the measure and the detail the numbers."""
    results = ValidationTransform([], BOUNDS).apply([Record(text) for text in ("abc", "ab", "a" * 11, "a???", "a??b")])
    assert [seen(result) for result in results] == [
        (None, False, ()),
        ("validation.outliers.length", False, ()),
        ("validation.outliers.length", False, ()),
        (None, False, ("validation.outliers.symbols",)),
        (None, False, ()),
    ]
    assert results[1].detail == "length of the text is 2, below 3"
    assert results[2].detail == "length of the text is 11, above 10"


@given(st.lists(st.text(max_size=30), max_size=5))
def test_outliers_of_a_batch_are_those_of_each_record(texts):
    """The neighbors of a record do not change its verdict."""
    transform = ValidationTransform(
        [], [OutlierBounds(name, 0.2, 0.7, "reject") for name in ("repetition", "symbols", "compression_ratio")]
    )
    records = [Record(text) for text in texts]
    assert list(transform.apply(records)) == [transform.apply([each])[0] for each in records]


def test_a_tokenizer_measures_bytes_per_token():
    """The measure divides the bytes by the tokens of the function, whose tokenizer is in the fingerprint."""
    bounds = [OutlierBounds("bytes_per_token", 2, None, "reject")]
    transforms = [
        ValidationTransform([], bounds, count_tokens=lambda texts: [len(t.split()) for t in texts], tokenizer=name)
        for name in ("words 1", "words 2")
    ]
    kept, dropped = transforms[0].apply([Record("longer words"), Record("a b c")])
    assert kept == Record("longer words")
    assert dropped.reason == "validation.outliers.bytes_per_token"
    assert transforms[0].fingerprint() != transforms[1].fingerprint()
    assert ValidationTransform([], BOUNDS, tokenizer="1").fingerprint() == ValidationTransform([], BOUNDS).fingerprint()


def test_every_option_is_in_the_fingerprint():
    """Validations with other results have other fingerprints; the order of the fields does not matter."""
    a, b = rules(("min", 0)), FieldRules("b", (FieldRule("type", "text", "reject"),))
    others = [
        ValidationTransform([a]),
        ValidationTransform([rules(("min", 1)), b]),
        ValidationTransform([rules(("min", 0), action="warn"), b]),
        ValidationTransform([rules(("min", 0), is_nullable=True), b]),
        ValidationTransform([rules(("min", 0), is_from_text=True), b]),
        ValidationTransform([a, b], text_field="b"),
        ValidationTransform([a, b], BOUNDS),
        ValidationTransform([a, b], BOUNDS[:1]),
        ValidationTransform([a, b], [OutlierBounds("length", 3, 11, "reject")]),
    ]
    fingerprints = {each.fingerprint() for each in (ValidationTransform([a, b]), *others)}
    assert len(fingerprints) == len(others) + 1
    assert ValidationTransform([b, a]).fingerprint() == ValidationTransform([a, b]).fingerprint()


def test_another_process_has_the_same_fingerprint():
    """The fingerprint does not depend on the hash seed."""
    code = (
        "from holdfast.adapters.transform.field_rules import FieldRule, FieldRules\n"
        "from holdfast.adapters.transform.validation import OutlierBounds, ValidationTransform\n"
        "rules = FieldRules('f', (FieldRule('pattern', 'a', 'warn'), FieldRule('one_of', ['a', 'b'], 'reject')))\n"
        "print(ValidationTransform([rules], [OutlierBounds('symbols', None, 0.5, 'warn')]).fingerprint())\n"
    )
    field = FieldRules("f", (FieldRule("pattern", "a", "warn"), FieldRule("one_of", ["a", "b"], "reject")))
    ours = ValidationTransform([field], [OutlierBounds("symbols", None, 0.5, "warn")])
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code]
    theirs = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True)
    assert theirs.stdout == f"{ours.fingerprint()}\n"
