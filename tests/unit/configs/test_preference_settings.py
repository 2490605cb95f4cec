"""Settings of preferences belong to their task, and what cannot work is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast.configs
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError

PAIRS = ("data.task=preference", "data.path=pairs.jsonl")
FOLDER = Path(holdfast.configs.__file__).resolve().parent


def test_pairs_are_packed_whole():
    """Pairs are packed best_fit, and left out if they are longer than a row."""
    settings = load_settings([], [*PAIRS, "data.chat.template=chatml", "optimizer.dpo.beta=0.3"], {}).settings
    assert (settings.data.packing.kind, settings.data.packing.overflow) == ("best_fit", "drop")
    assert restore_settings(dump_settings(settings)) == settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["optimizer.dpo.beta=0.3"], "has dpo, which belongs to data.task=preference, but data.task is text"),
        ([*PAIRS, "optimizer.dpo.beta=0"], "optimizer.dpo.beta"),
        ([*PAIRS, "optimizer.dpo.label_smoothing=0.5"], "optimizer.dpo.label_smoothing"),
        ([*PAIRS, "data.packing.overflow=truncate"], "the replies of a preference are compared whole"),
        ([*PAIRS, "data.packing.kind=concat"], "are packed whole: use best_fit with drop"),
        ([*PAIRS, "data.mode=stream"], "keeps the reference log-probabilities in the token cache"),
        ([*PAIRS, "data.chat.train_on=last_assistant"], "a preference compares the last replies"),
        ([*PAIRS, "evaluation.sets={a: {path: a.jsonl}}"], "only held-out pairs have reference log-probabilities"),
        ([*PAIRS, "model.loss=liger"], "has loss=liger, but the loss of data.task=preference is DPO"),
        ([*PAIRS, "optimizer.kind=other"], "has kind=other, which cannot train on data.task=preference"),
        (
            [*PAIRS, "recovery.early_stopping={patience: 2, metric: eval_bits_per_byte}", "evaluation.every=10"],
            "pairs of data.task=preference have no bits per byte",
        ),
        (
            ["recovery.early_stopping={patience: 2, metric: eval_reward_accuracy}", "evaluation.every=10"],
            "only pairs of data.task=preference have a reward accuracy",
        ),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings, words):
    """The message says which settings contradict each other, and what to do."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings([], settings, {})
    assert words in str(caught.value)
    assert "drop or truncate" not in str(caught.value)  # a pair is never truncated


def test_the_configuration_for_preferences_is_valid():
    """It loads by itself, and trains adapters on preferences."""
    settings = load_settings([FOLDER / "dpo_lora.yaml"], [], {}).settings
    assert settings.data.task == "preference"
    assert settings.model.lora is not None
