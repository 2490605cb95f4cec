"""Everything that can be wrong with the space of a search is said in one sentence before anything is trained."""

from __future__ import annotations

import pytest

from holdfast.configs.settings_layers import load_settings
from holdfast.configs.space_file import check_metric, read_space, words_of
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.tuning.search_space import Choices, FloatRange, IntRange, SearchSpace


@pytest.fixture
def space_of(tmp_path, monkeypatch):
    """Return a function that reads a space from its text."""
    monkeypatch.chdir(tmp_path)

    def read(text, *overrides, files=(), environ=None):
        (tmp_path / "space.yaml").write_text(text)
        from pathlib import Path

        return read_space(Path("space.yaml"), files, overrides, environ or {})

    return read


def complaint(read, text, *overrides):
    with pytest.raises(ConfigurationError) as caught:
        read(text, *overrides)
    return str(caught.value)


def test_a_space_has_ranges_and_choices(space_of):
    """Ranges take their type from the setting, choices are any values, and sections may be nested or dotted."""
    space = space_of("""
optimizer.learning_rate: {low: 1e-4, high: 1, log: true}
optimizer:
  batch_size: {low: 4, high: 16, step: 4}
  schedule.kind: {choices: [cosine, wsd]}
  betas: {choices: [[0.9, 0.95], [0.9, 0.99]]}
run.budget.tokens: {choices: [1M, 2M]}
model.config.num_hidden_layers: {low: 2, high: 6}
model.config.rope_theta: {low: 1000, high: 10000, int: false}
""")
    assert dict(space.dimensions) == {
        "model.config.num_hidden_layers": IntRange(2, 6),
        "model.config.rope_theta": FloatRange(1000.0, 10000.0),
        "optimizer.batch_size": IntRange(4, 16, step=4),
        "optimizer.betas": Choices(("[0.9, 0.95]", "[0.9, 0.99]")),
        "optimizer.learning_rate": FloatRange(1e-4, 1.0, is_log=True),
        "optimizer.schedule.kind": Choices(("cosine", "wsd")),
        "run.budget.tokens": Choices(('"1M"', '"2M"')),
    }


def test_words_set_what_the_space_says(space_of):
    """The values of a trial, written as arguments of the command line, give exactly these settings."""
    space = space_of('sample.prompt: {choices: ["null", "1e-3", "a b"]}')
    for option, text in zip(space.dimensions["sample.prompt"].options, ("null", "1e-3", "a b"), strict=True):
        words = words_of({"sample.prompt": option, "optimizer.learning_rate": 0.1 + 0.2, "optimizer.batch_size": 4})
        settings = load_settings([], words, {}).settings
        assert settings.sample.prompt == text
        assert settings.optimizer.learning_rate == 0.1 + 0.2
        assert settings.optimizer.batch_size == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it must hold settings to vary"),
        ("- 1", "it must hold settings to vary"),
        ("a: &x 1", "line 1: anchors"),
        ("optimizer.lerning_rate: {low: 1, high: 2}", "did you mean optimizer.learning_rate?"),
        ("optimizer.learning_rate: 1e-3", "is 0.001, which is one value: write {low: 1e-4"),
        ("optimizer.learning_rate: [1, 2]", "is [1, 2], which is one value"),
        ("optimizer.learning_rate: {low: 1}", "has no high: write"),
        ("optimizer.learning_rate: {low: 2, high: 1}", "has low: 2 above high: 1: exchange them"),
        ("optimizer.learning_rate: {low: a, high: 1}", "has low: a: it must be a number; other values are choices"),
        ("optimizer.learning_rate: {low: 1, high: 2, logg: true}", "has logg, which is no part of a range"),
        ("optimizer.learning_rate: {low: 1, high: 2, log: 1}", "has log: 1: it must be true or false"),
        ("optimizer.learning_rate: {low: 0, high: 2, log: true}", "a logarithm needs numbers above 0"),
        ("optimizer.learning_rate: {low: 1, high: 2, step: 0}", "has step: 0: it must be above 0"),
        ("optimizer.learning_rate: {low: 1, high: 2, step: 1, log: true}", "has both log and step: leave one out"),
        ("optimizer.learning_rate: {low: 0, high: 2}", "optimizer.learning_rate (space.yaml) must be above 0"),
        ("optimizer.batch_size: {low: 1.5, high: 4}", "takes whole numbers, but has 1.5, 4: round them"),
        ("optimizer.batch_size: {choices: []}", "it must be a list such as [1, 2]"),
        ("optimizer.batch_size: {choices: [4, 4]}", "has the choice 4 twice: leave one out"),
        ("optimizer.batch_size: {choices: [4], low: 1}", "has both choices and low"),
        ("optimizer.algorithm: {choices: [adamw, adam]}", "optimizer.algorithm (space.yaml) must be one of"),
        ("run.name: {choices: [a, b]}", "cannot vary, as each trial has a folder of its own: leave it out"),
        ("tune.seed: {low: 1, high: 2}", "cannot vary, as these settings describe the search itself"),
        ("evaluation.every: {low: 1, high: 2}", "cannot vary, as then trials would not be measured alike"),
    ],
)
def test_a_mistake_is_one_sentence(space_of, text, sentence):
    """Each mistake in the file is named with its setting and its remedy."""
    message = complaint(space_of, text)
    assert sentence in message
    assert len(message.splitlines()) == 1
    assert "space.yaml" in message


def test_all_mistakes_are_named_together(space_of):
    """Several mistakes are told at once, each on its own line and once."""
    message = complaint(
        space_of,
        "optimizer.learning_rate: {low: -1, high: 0}\noptimizer.batch_size: {low: 0, high: 4}\nmodel.kind: 3\n",
    )
    lines = message.splitlines()
    assert lines[0] == "4 settings are wrong:"
    assert len({*lines}) == 5
    assert sum("optimizer.learning_rate" in line for line in lines) == 2


def test_a_combination_that_is_not_valid_is_named(space_of):
    """Values that are valid alone and not together are refused, with the combination and the reason."""
    message = complaint(space_of, "optimizer.batch_size: {choices: [2, 8]}\noptimizer.micro_batch: {choices: [2, 8]}\n")
    assert "the combination optimizer.batch_size=2 optimizer.micro_batch=8 of space.yaml is not valid" in message
    assert "must be at most optimizer.batch_size, which is 2" in message


def test_a_file_that_is_not_there_is_named(space_of, tmp_path):
    """A missing file, and a folder in its place, are one sentence each."""
    from pathlib import Path

    with pytest.raises(ConfigurationError, match=r"^--space none.yaml: no such file$"):
        read_space(Path("none.yaml"), [], [], {})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_space(tmp_path, [], [], {})


def test_losses_of_tokenizers_are_not_compared():
    """A space with settings of the tokenizer needs the metric that compares tokenizers."""
    space = SearchSpace({"tokenizer.vocabulary_size": IntRange(300, 400)})
    with pytest.raises(ConfigurationError, match=r"set tune\.metric=eval_bits_per_byte"):
        check_metric(space, "eval_loss")
    check_metric(space, "eval_bits_per_byte")
    check_metric(SearchSpace({"optimizer.clip": FloatRange(0.5, 1.0)}), "eval_loss")


@pytest.mark.parametrize(
    ("name", "metric", "words"),
    [
        ("optimizer.dpo.beta", "eval_loss", r"do not compare: set tune\.metric=eval_reward_accuracy"),
        ("optimizer.weight_decay", "eval_bits_per_byte", r"have no bits per byte: set tune\.metric=eval_loss"),
        ("optimizer.dpo.beta", "eval_bits_per_byte", r"have no bits per byte: set tune\.metric=eval_reward_accuracy"),
    ],
)
def test_losses_of_preferences_are_compared_only_if_they_are_the_same(name, metric, words):
    """A setting of the loss itself is not tuned by that loss, and pairs have no bytes."""
    with pytest.raises(ConfigurationError, match=words):
        check_metric(SearchSpace({name: FloatRange(0.1, 0.4)}), metric, "preference")
    check_metric(SearchSpace({name: FloatRange(0.1, 0.4)}), "eval_reward_accuracy", "preference")
    with pytest.raises(ConfigurationError, match=r"only pairs of data\.task=preference have a reward accuracy"):
        check_metric(SearchSpace({name: FloatRange(0.1, 0.4)}), "eval_reward_accuracy")
    check_metric(SearchSpace({"optimizer.weight_decay": FloatRange(0.1, 0.4)}), "eval_loss", "preference")
    check_metric(SearchSpace({"tokenizer.vocabulary_size": IntRange(300, 400)}), "eval_loss", "preference")
