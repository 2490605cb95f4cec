"""The prompt of the sample at the end of a run."""

from __future__ import annotations

import pytest

from holdfast.configs.settings_layers import load_settings


@pytest.mark.parametrize(
    ("overrides", "prompt"),
    [
        ((), "def"),
        (("data.path=texts",), ""),
        (("data.path=talks.jsonl", "data.task=chat"), "Hello"),
        (("data.path=pairs.jsonl", "data.task=preference", "optimizer.dpo.beta=0.1"), "Hello"),
        (("sample.prompt=",), ""),
        (("data.path=texts", "sample.prompt=def "), "def "),
        (("data.path=texts", "sample.top_k=7"), ""),
    ],
)
def test_a_prompt_that_was_not_given_suits_the_data(overrides, prompt):
    """Python gets Python, conversations a greeting and other data none; a given prompt stays, also an empty one."""
    assert load_settings([], overrides, {}).settings.sample.prompt == prompt
