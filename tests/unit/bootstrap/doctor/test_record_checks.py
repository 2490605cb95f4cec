"""The first record of the data, as the settings read it."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.doctor.finding import CheckVerdict
from holdfast.bootstrap.doctor.storage_checks import record_checks
from holdfast.configs.settings_layers import load_settings


def findings(*overrides):
    """Return the last finding of each section, on its first record; those before are remarks on its files."""
    settings = load_settings([], overrides, {}).settings
    return [finding for check in record_checks(settings, 5) for finding in check.look()[-1:]]


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.csv"
    path.write_text("id,body\n1,hello\n2,there\n")
    return path


def test_a_column_that_is_missing_is_named_with_those_there(letters):
    """A wrong ``text_field`` is an error with the columns of the file, whether records may be skipped or not."""
    for more in ([], ["data.on_error=skip"]):
        (found,) = findings(f"data.path={letters}", "data.text_field=text", *more)
        assert (found.name, found.verdict) == ("data.text_field", CheckVerdict.ERROR)
        assert "there is no column 'text', only 'id', 'body'" in found.detail
        assert found.remedy == "set data.text_field to one of them"


def test_a_record_that_may_be_skipped_is_a_warning(tmp_path):
    """A first line without the field is an error, and a warning if a run would skip it."""
    path = tmp_path / "texts.jsonl"
    path.write_text('{"title": "a"}\n{"text": "b"}\n')
    (stopped,), (skipped,) = findings(f"data.path={path}"), findings(f"data.path={path}", "data.on_error=skip")
    assert (stopped.verdict, skipped.verdict) == (CheckVerdict.ERROR, CheckVerdict.WARNING)


def test_each_source_and_set_is_looked_at(letters, tmp_path):
    """Sources of a mixture and sets of an evaluation have a finding each, and files that are not there have none."""
    sources = f"{{one: {{path: {letters}, text_field: body}}, two: {{path: {letters}}}}}"
    sets = f"{{held: {{path: {letters}, text_field: body}}, gone: {{path: {tmp_path / 'gone.jsonl'}}}}}"
    found = findings("data.kind=mixture", f"data.sources={sources}", f"evaluation.sets={sets}")
    verdicts = {finding.name: finding.verdict for finding in found}
    assert verdicts == {
        "data.sources.one.text_field": CheckVerdict.OK,
        "data.sources.two.text_field": CheckVerdict.ERROR,
        "evaluation.sets.held.text_field": CheckVerdict.OK,
    }
