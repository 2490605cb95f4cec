"""Runs whose documents go through transforms."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint

import pytest

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.events import StepCompleted
from holdfast.ports.transform import Transform
from tests.support.command_line import tiny

LONG = [" ".join(f"{number * word:x}" for word in range(1, 60)) for number in range(1, 41)]
SHORT = [f"too short {number}" for number in range(40)]
AT_LEAST_50 = "data.transforms=[{kind: length, options: {min_characters: 50}}]"
AT_LEAST_40 = "data.transforms=[{kind: length, options: {min_characters: 40}}]"


def write(path, texts):
    """Write a jsonl corpus of ``texts``."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def train(corpus, name, *more):
    """Train in the folder ``name`` beside ``corpus``; return the loss of each step and the lines said."""
    overrides = tiny(corpus, f"run.dir={corpus.parent / name}", "run.budget.steps=4", "monitors=[]", *more)
    losses, said = [], []
    run = build(load_settings([], overrides, {}).settings, report=said.append, tokenizer=MemoryTokenizer())
    run.subscribe(StepCompleted, lambda event: losses.append(event.outcome.loss))
    run.run()
    return losses, said


def caches(corpus):
    """Return the datasets in the token cache of ``corpus``."""
    return {path.parent.parent.name for path in (corpus.parent / "cache/tokens").glob("*/*/manifest.json")}


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_run_trains_on_what_its_transforms_leave(tmp_path, mode):
    """With short documents left out, every step's loss is that of a run whose files never had them."""
    mixed = [text for pair in zip(LONG, SHORT, strict=True) for text in pair]
    more = (f"data.mode={mode}", "data.holdout=0.1")
    without = write(tmp_path / "without/corpus.jsonl", LONG)
    corpus = write(tmp_path / "mixed/corpus.jsonl", mixed)
    expected, _ = train(without, "run", *more)
    assert train(corpus, "filtered", AT_LEAST_50, *more)[0] == expected
    assert train(corpus, "whole", *more)[0] != expected


def test_other_options_make_another_token_cache(tmp_path):
    """Tokens are kept apart by transform and options: other ones tokenize anew, the same ones find theirs again."""
    corpus = write(tmp_path / "corpus.jsonl", LONG + SHORT)
    first, said = train(corpus, "first", AT_LEAST_50, "data.mode=cache")
    assert [line for line in said if f"of {len(LONG)} documents" in line]
    [kept] = caches(corpus)
    train(corpus, "second", AT_LEAST_40, "data.mode=cache")
    assert kept in caches(corpus)
    assert len(caches(corpus)) == 2
    again, said = train(corpus, "third", AT_LEAST_50, "data.mode=cache")
    assert again == first
    assert len(caches(corpus)) == 2
    assert [line for line in said if line.startswith("prepared")] == []


def test_a_run_is_not_resumed_with_other_transforms(tmp_path):
    """Transforms are part of what a run is: another list is refused in a sentence that names the setting."""
    corpus = write(tmp_path / "corpus.jsonl", LONG + SHORT)
    train(corpus, "run", AT_LEAST_50, "run.budget.steps=2")
    for other in (AT_LEAST_40, "data.transforms=[]", "data.transforms=[normalize]"):
        with pytest.raises(ConfigurationError, match=r"data\.transforms"):
            train(corpus, "run", other)
    losses, _ = train(corpus, "run", AT_LEAST_50)
    assert len(losses) == 2


class Versioned(Transform):
    """What the entry point of the next test names; another ``version`` may give other texts."""

    version = 1

    def __call__(self, text):
        return text

    def fingerprint(self):
        return f"versioned {self.version}"


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_run_is_not_resumed_with_another_version_of_a_transform(tmp_path, monkeypatch, mode):
    """An outside transform whose fingerprint changed between two starts is refused, as other data would be."""
    point = EntryPoint("versioned", f"{__name__}:Versioned", "holdfast.transform")
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: [point] * (group == point.group)
    )
    corpus = write(tmp_path / "corpus.jsonl", LONG)
    more = ("data.transforms=[versioned]", f"data.mode={mode}")
    train(corpus, "run", *more, "run.budget.steps=2")
    with monkeypatch.context() as upgraded:
        upgraded.setattr(Versioned, "version", 2)
        with pytest.raises(StateError, match="transforms"):
            train(corpus, "run", *more)
    losses, _ = train(corpus, "run", *more)
    assert len(losses) == 2


def test_wrong_options_end_the_start(tmp_path):
    """A transform that cannot be made ends the run before a step, and the folder is free for the right one."""
    corpus = write(tmp_path / "corpus.jsonl", LONG)
    with pytest.raises(ConfigurationError, match="min_length"):
        train(corpus, "run", "data.transforms=[{kind: length, options: {min_length: 50}}]")
    losses, _ = train(corpus, "run", AT_LEAST_50)
    assert len(losses) == 4
