"""The command that repeats a run, and the settings that differ from the defaults."""

from __future__ import annotations

import shlex

import pytest

from holdfast.bootstrap.operations.repeat_command import repeat_command, with_defaults
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings

CASES = [
    [],
    ["optimizer.learning_rate=1e-4", "run.budget.steps=20", "run.seed=7"],
    [
        "data.path=[a.jsonl, 'b c.jsonl']",
        "data.holdout=0.2",
        "data.transforms=[{kind: length, options: {min_characters: 3}}]",
    ],
    ["data.sources={web: {path: web, weight: 3}, code: {path: code, weight: 1}}"],
    ["data.sources={library: {kind: python_library}, code: {path: code, score: {name: good, min: 1}}}"],
    ["evaluation.sets={news: {path: news.jsonl}, law: {path: law, text_field: body}}"],
    ["model.config.hidden_size=32", "monitors=[jsonl]", 'sample.prompt=it\'s "quoted"\n$HOME `x`'],
    ["state_store.archive.url=s3://bucket/runs", "optimizer.schedule.kind=wsd"],
    ["data.epochs=3"],
    ["data.path=a.jsonl", "data.epochs=3", "run.budget.steps=350"],
    ["data.path=a.jsonl", "data.task=chat", "sample.prompt="],
]


def plain(settings):
    return dump_settings(load_settings([], settings, {}).settings)


@pytest.mark.parametrize("settings", CASES)
def test_the_command_gives_the_same_settings(settings):
    """Its words, read as a shell and the command line read them, give each recorded setting again."""
    recorded = plain(settings)
    repeat = repeat_command(recorded)
    assert repeat.lack is None
    words = shlex.split(repeat.command)
    assert plain(words[words.index("train") + 1 :]) == recorded


def test_a_secret_is_named_and_not_written():
    """A masked secret cannot be repeated, which the reader is told."""
    recorded = plain(["data.path=https://user:secret@host/a.jsonl"])
    repeat = repeat_command(recorded)
    assert "secret" not in repeat.command
    assert "data.path" in repeat.lack


def test_settings_of_another_version_are_reported():
    """A setting that this version does not know is named, instead of a command that fails."""
    repeat = repeat_command(plain([]) | {"from_the_future": {"color": "red"}})
    assert "from_the_future" in repeat.lack


def test_only_settings_with_another_value_than_the_default_are_marked():
    """The marked settings are those that were given; of another kind, they are compared with its own defaults."""
    given = ["optimizer.learning_rate=1e-4", "data.kind=files", "data.path=a.jsonl", "data.format=auto"]
    changed = {each.name for each in with_defaults(plain([*given, "run.name=mine"])) if each.is_changed}
    assert changed == {"optimizer.learning_rate", "data.kind", "data.path", "run.name"}


def test_the_options_of_a_named_source_or_set_are_compared_with_their_defaults():
    """Of a set and of a source of a mixture, only the options that were given are marked."""
    given = ["evaluation.sets.news.path=a.jsonl", "data.sources={web: {path: web, weight: 3}}", "run.name=mine"]
    changed = {each.name for each in with_defaults(plain(given)) if each.is_changed}
    sources = {f"data.sources.web.{name}" for name in ("kind", "path", "weight")}
    assert changed == {"evaluation.sets.news.kind", "evaluation.sets.news.path", *sources, "data.kind", "run.name"}
