"""The settings of ``data.validation``."""

from __future__ import annotations

import json

import pytest

from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_catalog import describe_settings
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError

EXAMPLE = """
data:
  validation:
    fields:
      url: {type: text, required: true, pattern: '^https?://', max_length: 2000}
      score: {type: number, min: 0, max: 1, missing: reject, on_violation: {max: warn}}
      lang: {one_of: [en, de], on_violation: stop}
      id: {unique: true}
      text: {min_length: 10, unique: true}
    outliers:
      length: {zscore: 6}
      repetition: {quantiles: [0, 0.999]}
      symbols: {max: 0.4, on_violation: warn}
    on_violation: reject
    max_rejected: 0.1
"""


def settings(validation):
    return load_settings([], [f"data.validation={validation}"], {}).settings.data.validation


def field(rules):
    return settings(f"{{fields: {{f: {rules}}}}}").fields["f"]


def test_nothing_is_validated_unless_asked():
    """Without the section there is no validation, and a single rule is enough for one."""
    assert load_settings([], [], {}).settings.data.validation is None
    given = load_settings([], ["data.validation.fields.lang.one_of=[en]"], {}).settings.data.validation
    assert given.fields["lang"].one_of == ("en",)
    assert (given.on_violation, given.max_rejected, given.outliers.measures) == ("reject", 0.05, {})


def test_a_file_names_fields_and_outliers(tmp_path):
    """The section of a file arrives with every rule, and the record of a run restores the same settings."""
    file = tmp_path / "a.yaml"
    file.write_text(EXAMPLE)
    whole = load_settings([file], [], {}).settings
    validation = whole.data.validation
    assert list(validation.fields) == ["url", "score", "lang", "id", "text"]
    assert validation.fields["url"].rules == {"type": "text", "max_length": 2000, "pattern": "^https?://"}
    assert validation.fields["score"].on_violation == {"max": "warn"}
    assert {name: how.model_dump(exclude_none=True) for name, how in validation.outliers.measures.items()} == {
        "length": {"zscore": 6},
        "repetition": {"quantiles": (0, 0.999)},
        "symbols": {"max": 0.4, "on_violation": "warn"},
    }
    assert validation.unique_fields == ("id", "text")
    assert restore_settings(json.loads(json.dumps(dump_settings(whole)))) == whole


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        ("{min: 0}", "number"),
        ("{max: 0}", "number"),
        ("{pattern: a}", "text"),
        ("{max_length: 3}", "text"),
        ("{min_length: 3, type: list}", "list"),
        ("{min: 3, type: integer}", "integer"),
        ("{one_of: [a]}", None),
        ("{unique: true}", None),
    ],
)
def test_rules_imply_a_type(rules, kind):
    """Bounds make a field a number, pattern and length make it text, and the type itself is a rule then."""
    assert field(rules).kind == kind
    assert field(rules).rules.get("type") == kind


@pytest.mark.parametrize(
    ("validation", "named"),
    [
        ("{fields: {f: {pattern: '(a'}}}", ["fields.f.pattern", "unterminated subpattern", "'(a'"]),
        ("{fields: {f: {min: 2, max: 1}}}", ["fields.f.max", "at least min, which is 2, not 1"]),
        ("{fields: {f: {min_length: 2, max_length: 1}}}", ["fields.f.max_length", "at least min_length"]),
        ("{fields: {f: {min_length: -1}}}", ["fields.f.min_length", "at least 0"]),
        ("{fields: {f: {one_of: de}}}", ["fields.f.one_of", "must be a list, not de"]),
        ("{fields: {f: {one_of: []}}}", ["fields.f.one_of", "at least 1"]),
        ("{fields: {f: {one_of: [[1]]}}}", ["fields.f.one_of", "texts, numbers or true/false, not [1]"]),
        ("{fields: {f: {type: number, one_of: [de]}}}", ["fields.f", "'de' in one_of", "type is number"]),
        ("{fields: {f: {type: integer, one_of: [1.5]}}}", ["fields.f", "1.5 in one_of", "type is integer"]),
        ("{fields: {f: {min: 0, one_of: [de]}}}", ["fields.f", "'de' in one_of", "type is number, as other rules"]),
        ("{fields: {f: {type: text, min: 1}}}", ["fields.f", "has min", "type is text", "number or integer"]),
        ("{fields: {f: {min: 1, pattern: a}}}", ["fields.f", "has pattern", "type is number, as other rules imply"]),
        ("{fields: {f: {from_text: true}}}", ["fields.f", "from_text", "type is null", "number or integer"]),
        ("{fields: {f: {type: text, from_text: true}}}", ["fields.f", "from_text", "type is text"]),
        ("{fields: {f: {type: string}}}", ["fields.f.type", "text, number, integer, boolean, list or object"]),
        ("{fields: {f: {minn: 1}}}", ["fields.f", "'minn'", "did you mean min?"]),
        ("{fields: {f: {zzz: 1}}}", ["fields.f", "'zzz'", "there are from_text, max,"]),
        ("{fields: {f: {required: true, missing: allow}}}", ["fields.f.missing", "the field is required"]),
        ("{fields: {f: {on_violation: drop}}}", ["fields.f.on_violation", "reject, warn or stop, not drop"]),
        ("{fields: {f: {on_violation: {pattern: warn}}}}", ["fields.f", "on_violation.pattern", "no rule pattern"]),
        ("{fields: {f: {on_violation: {pat: warn}}}}", ["fields.f.on_violation.pat", "must be one of type, one_of"]),
        ("{fields: {text: {type: number}}}", ["validation.fields", "text is number", "always text"]),
        ("{fields: {text: {nullable: true}}}", ["validation.fields", "text is nullable", "always text"]),
        ("{fields: [url]}", ["validation.fields", "must be a mapping"]),
        ("{}", ["data.validation", "checks nothing"]),
        ("{fields: {f: {unique: true}}, max_rejected: 5}", ["validation.max_rejected", "at most 1, not 5"]),
        ("{outliers: {length: {}}}", ["outliers.length", "either zscore, or quantiles, or min and max"]),
        ("{outliers: {length: {zscore: 3, min: 1}}}", ["outliers.length", "either zscore"]),
        ("{outliers: {length: {zscore: 0}}}", ["outliers.length.zscore", "above 0"]),
        ("{outliers: {length: {min: 2, max: 1}}}", ["outliers.length.max", "at least min, which is 2, not 1"]),
        ("{outliers: {length: {quantiles: [0.9, 0.1]}}}", ["outliers.length.quantiles", "lower and a higher"]),
        ("{outliers: {length: {quantiles: [0, 2]}}}", ["outliers.length.quantiles[1]", "at most 1, not 2"]),
        ("{outliers: {lenght: {zscore: 3}}}", ["outliers.lenght", "did you mean data.validation.outliers.length?"]),
    ],
)
def test_impossible_rules_are_refused_in_a_sentence(validation, named):
    """A rule that cannot be, or that contradicts another, is an error on one line that names it."""
    with pytest.raises(ConfigurationError) as caught:
        settings(validation)
    message = str(caught.value)
    assert [name for name in named if name not in message] == []
    assert "\n" not in message


def test_every_name_is_described():
    """The list of settings describes the section, its outliers and their bounds."""
    described = describe_settings(["data.validation"])
    for name in ("fields", "max_rejected", "on_violation", "outliers.length", "outliers.symbols.zscore"):
        assert f"data.validation.{name}" in described
