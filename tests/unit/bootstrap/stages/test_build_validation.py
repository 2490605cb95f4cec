"""The validation that the settings choose."""

from __future__ import annotations

import pytest

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap.stages.identify.record_pipeline import build_rejection_limit, build_validation, fields_read
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.transform import Dropped, Record


def data(validation, *more):
    return load_settings([], [f"data.validation={validation}", *more], {}).settings.data


def built(validation, *more, sample=lambda: (), bounds=None):
    return build_validation(data(validation, *more), sample, MemoryTokenizer(), bounds)


def verdicts(transform, *fields):
    results = transform.apply([Record("a text", each) for each in fields])
    return [(each.reason, each.ends_run) if isinstance(each, Dropped) else each.warnings for each in results]


def test_no_section_is_no_validation():
    """Without the section there is neither a transform nor a limit."""
    settings = load_settings([], [], {}).settings.data
    assert build_validation(settings, list, MemoryTokenizer()) is None
    assert build_rejection_limit(settings) is None


def test_each_rule_has_its_own_action():
    """The action of a rule is its own, else that of its field, else that of the section."""
    fields = "a: {min: 0, max: 1, on_violation: {max: warn}}, b: {type: text, required: true, on_violation: stop}"
    transform = built(f"{{fields: {{{fields}, c: {{type: text, missing: warn}}}}, on_violation: reject}}")
    full = {"a": 0.5, "b": "x", "c": "x"}
    broken = [{**full, "a": -1}, {**full, "a": 2}, {**full, "b": 1}, {**full, "b": None}, {**full, "c": 1}]
    assert verdicts(transform, full, *broken, {"a": 1, "b": "x"}) == [
        (),
        ("validation.a.min", False),
        ("validation.a.max",),
        ("validation.b.type", True),
        ("validation.b.missing", True),
        ("validation.c.type", False),
        ("validation.c.missing",),
    ]


def test_nullable_and_spelled_values_come_through():
    """The settings of null and of spelled numbers reach the rules."""
    transform = built(
        "{fields: {a: {type: integer, from_text: true}, b: {type: text, nullable: true, required: true}}}"
    )
    assert verdicts(transform, {"a": "5", "b": None}, {"a": "x", "b": "y"}, {"a": "5"}) == [
        (),
        ("validation.a.type", False),
        ("validation.b.missing", False),
    ]


def test_unique_fields_are_not_read():
    """A field that only has to be unique is a matter of the removal of duplicates."""
    assert list(built("{fields: {id: {unique: true}, a: {type: text}}}").fields) == ["a"]


def test_the_name_of_the_text_field_means_the_text():
    """The text has its rules under text or under the name of its field, but not under both."""
    body = ["data.kind=files", "data.path=x", "data.text_field=body"]
    for name in ("body", "text"):
        transform = built(f"{{fields: {{{name}: {{max_length: 3}}}}}}", *body)
        assert list(transform.fields) == []
        assert verdicts(transform, {}) == [(f"validation.{name}.max_length", False)]
    with pytest.raises(ConfigurationError, match=r"'text' and for 'body'.*keep one"):
        built("{fields: {body: {max_length: 3}, text: {min_length: 1}}}", *body)


def test_bounds_come_from_the_sample_unless_they_are_known():
    """The sample is read once for all bounds, and not at all for known bounds and for numbers."""
    calls = []

    def sample():
        calls.append(1)
        return ["x" * number for number in range(1, 102)]

    quantiles = "{outliers: {length: {quantiles: [0.1, 0.9], on_violation: warn}, symbols: {zscore: 3}}}"
    fitted = built(quantiles, sample=sample)
    assert calls == [1]
    assert [(b.measure, b.low, b.high, b.action) for b in fitted.outliers] == [
        ("length", 11, 91, "warn"),
        ("symbols", None, None, "reject"),
    ]
    known = {bounds.measure: (bounds.low, bounds.high) for bounds in fitted.outliers}
    again = built(quantiles, sample=sample, bounds=known)
    assert again.fingerprint() == fitted.fingerprint()
    assert built("{outliers: {length: {max: 5}}}", sample=sample).outliers[0].high == 5
    assert calls == [1]


def test_a_tokenizer_measures_bytes_per_token():
    """The bytes per token are those of the tokenizer of the run, which is in the fingerprint."""
    transform = built("{outliers: {bytes_per_token: {min: 0.1, max: 0.5}}}")
    [dropped] = transform.apply([Record("a text")])
    assert dropped.reason == "validation.outliers.bytes_per_token"
    assert MemoryTokenizer().fingerprint() in transform.fingerprint().replace('\\"', '"')


def test_impossible_data_are_refused():
    """Tokens have no records, and a sample of few documents gives no bounds."""
    with pytest.raises(ConfigurationError, match=r"data\.validation checks records.*leave it out"):
        built("{fields: {a: {type: text}}}", "data.kind=tokens", "data.path=x.npy")
    with pytest.raises(DataError, match=r"outliers\.length .*at least 20"):
        built("{outliers: {length: {zscore: 6}}}")


def test_the_limit_has_the_share_of_the_settings():
    """The limit ends the run beyond max_rejected; null means no limit."""
    limit = build_rejection_limit(data("{fields: {a: {type: text}}, max_rejected: 0.5}"))
    limit.add(1000, {"validation.a.type": 500})
    with pytest.raises(DataError, match=r"max_rejected=0\.5"):
        limit.add(0, {"validation.a.type": 1})
    assert build_rejection_limit(data("{fields: {a: {type: text}}, max_rejected: null}")) is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (("data.path=x",), ["text"]),
        (("data.path=x", "data.text_field=body"), ["body"]),
        (("data.sources={a: {path: x}, b: {path: y}}",), ["text"]),
        (("data.sources={a: {path: x}, b: {path: y, text_field: body}}",), []),
    ],
)
def test_the_source_is_asked_for_blank_texts_if_they_are_judged(settings, names):
    """It is asked by the name of the text, where all sources have one; not for a run of an earlier version."""
    rules = "data.validation.fields={text: {min_length: 1}}"
    chosen = load_settings([], [*settings, rules], {}).settings.data
    assert fields_read([], chosen) == names
    assert fields_read([], chosen, {"blank_texts": 1}) == []
