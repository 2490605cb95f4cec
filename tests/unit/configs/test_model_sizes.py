"""One dial for the size of a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.settings_layers import SIZES, load_settings
from holdfast.domain.errors import ConfigurationError


def resolved(*words):
    return load_settings([], list(words), {})


def test_the_dial_has_the_documented_sizes():
    """The setting takes the sizes of the table, and no other."""
    (choices, _) = get_args(HuggingFaceModelSettings.model_fields["size"].annotation)
    assert list(get_args(choices)) == list(SIZES)


@pytest.mark.parametrize(("size", "wanted"), [(size, size.replace("B", "e9").replace("M", "e6")) for size in SIZES])
def test_a_size_has_its_number_of_parameters(size, wanted):
    """The name of a size is its number of parameters, within an eighth."""
    assert SIZES[size][0].parameters == pytest.approx(float(wanted), rel=0.125)


def test_a_size_sets_what_belongs_to_it_and_says_so():
    """Each value that follows from the size names it as its origin."""
    found = resolved("model.size=124M")
    assert found.settings.model.config["hidden_size"] == 768
    assert found.settings.optimizer.batch_size * found.settings.data.sequence_length == 2**18
    assert (found.settings.optimizer.learning_rate, found.settings.run.budget.tokens) == (0.0017, 2_500_000_000)
    assert found.settings.optimizer.schedule.warmup_steps == 94
    names = ["model.config.hidden_size", "data.sequence_length", "optimizer.learning_rate", "run.budget.tokens"]
    assert {found.origins[name] for name in names} == {"model.size=124M (command line)"}


def test_other_settings_win():
    """A value of the user stands, also one that takes the place of another setting of the size."""
    words = ["data.sequence_length=256", "run.budget.steps=10", "optimizer.batch_tokens=1024", "tokenizer.path=x"]
    found = resolved("model.size=10M", "model.config.num_hidden_layers=2", "optimizer.learning_rate=1e-5", *words)
    settings = found.settings
    assert (settings.model.config["num_hidden_layers"], settings.model.config["hidden_size"]) == (2, 256)
    assert (settings.optimizer.learning_rate, settings.optimizer.batch_tokens) == (1e-5, 1024)
    assert (settings.run.budget.steps, settings.run.budget.tokens) == (10, None)
    assert settings.optimizer.schedule.warmup_steps == resolved().settings.optimizer.schedule.warmup_steps
    by_epochs = resolved("model.size=10M", "data.epochs=2").settings.run.budget
    assert (by_epochs.steps, by_epochs.tokens) == (None, None)
    assert resolved("model.size=10M", "data.epochs=null").settings.run.budget.tokens is not None


def test_a_shorter_row_has_more_rows_in_a_batch():
    """The batch counts tokens, so rows of half the length are twice as many."""
    rows = [
        resolved("model.size=350M", f"data.sequence_length={length}").settings.optimizer.batch_size
        for length in (512, 1024)
    ]
    assert rows[0] == 2 * rows[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model.path=gpt2"], "model.path (command line) chooses another model"),
        (["model.config.model_type=qwen3"], "model.config.model_type (command line) chooses another model"),
    ],
)
def test_a_size_beside_another_model_is_refused(words, sentence):
    """Weights and shapes of another family have a size already."""
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        resolved("model.size=1B", *words)


def test_an_unknown_size_names_those_that_there_are():
    """A size that is not in the table is refused with the table."""
    with pytest.raises(ConfigurationError, match="10M, 124M, 350M, 1B, 3B or 8B"):
        resolved("model.size=7B")


def test_the_documented_table_is_that_of_the_code():
    """Each row of the table in the documentation is what the size sets."""
    page = (Path(__file__).parents[3] / "docs/models.md").read_text(encoding="utf-8")
    for size, (shape, length) in SIZES.items():
        settings = resolved(f"model.size={size}").settings
        heads = f"{shape.hidden_size} x {shape.num_hidden_layers}, {shape.num_attention_heads} heads"
        optimizer, tokens = settings.optimizer, settings.run.budget.tokens / 1e9
        numbers = f"{length:,} | {optimizer.batch_size:,} | {optimizer.learning_rate:g} | {tokens:g}B"
        assert f"| `{size}` | {heads} | {shape.vocabulary:,} | {numbers} |" in page
