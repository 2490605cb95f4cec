"""The settings in a job file, and the variables that keep secrets out of it."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.job_files.job import job_settings
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError

CASES = [
    [],
    ["optimizer.batch_tokens=65536", "run.budget.steps=20", "data.holdout=0.2"],
    ["data.path=[a.jsonl, 'b c.jsonl']", 'sample.prompt=it\'s "quoted"\n$HOME `x`'],
    ["data.sources={web: {path: web, weight: 3}, code: {path: code, weight: 1}}"],
    ["run.name=default", "data.path=texts"],
    ["model.path=Qwen/x", "state_store.archive.url=s3://bucket/runs"],
]


def settings_of(*overrides, environ=None):
    """Return the settings that ``overrides`` give."""
    return load_settings([], overrides, environ or {}).settings


@pytest.mark.parametrize("overrides", CASES)
def test_the_words_give_the_same_settings(overrides):
    """A command with these words, on a machine with nothing in its environment, trains the same run."""
    settings = settings_of(*overrides)
    found = job_settings(settings, {})
    assert dump_settings(settings_of(*found.words)) == dump_settings(settings)
    assert found.variables == ()


def test_a_setting_of_the_environment_is_in_the_words():
    """What was set by a variable here is set on the other machines too."""
    settings = settings_of(environ={"HOLDFAST_OPTIMIZER__LEARNING_RATE": "0.25"})
    assert "optimizer.learning_rate=0.25" in job_settings(settings, {}).words


def test_a_secret_becomes_a_variable():
    """The value of a secret is in no word, and its setting is named as a variable."""
    found = job_settings(settings_of("data.path=https://user:hunter2@host/a.jsonl", "run.seed=7"), {})
    assert found.variables == ("HOLDFAST_DATA__PATH",)
    assert "run.seed=7" in found.words
    assert not any("hunter2" in word or "masked" in word for word in found.words)


def test_variables_that_settings_name_are_listed():
    """A key and a connection string by env:NAME are named once each, also within a list."""
    overrides = ["state_store.encryption.key_from=env:KEY", "monitors=[jsonl, {kind: postgres, dsn: 'env:PG'}]"]
    assert set(job_settings(settings_of(*overrides), {}).variables) == {"KEY", "PG"}


def test_variables_of_libraries_are_listed_where_they_are_set():
    """The keys of S3 are needed for an archive there, and only if they are in the environment here."""
    settings = settings_of("state_store.archive.url=s3://bucket/runs")
    here = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HF_TOKEN": "c"}
    assert job_settings(settings, here).variables == ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    assert job_settings(settings_of(), here).variables == ()


def test_a_secret_that_no_variable_can_hold_is_refused():
    """The name of a variable has no small letters, so a mixture's source with a capital is not found by one."""
    sources = "data.sources={Web: {path: 'https://user:hunter2@host/a.jsonl'}, code: {path: code}}"
    with pytest.raises(ConfigurationError, match="Web") as caught:
        job_settings(settings_of(sources), {})
    assert "hunter2" not in str(caught.value)
