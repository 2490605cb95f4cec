"""The settings of deduplication."""

from __future__ import annotations

import json

import pytest

from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError


def settings(*overrides):
    return load_settings([], overrides, {}).settings


@pytest.mark.parametrize("kind", ["exact", "minhash"])
def test_a_kind_alone_has_defaults(kind):
    """The name of a kind is short for a mapping, and a record of the settings keeps it."""
    assert settings().data.dedup is None
    chosen = settings(f"data.dedup={kind}")
    assert chosen.data.dedup == settings(f"data.dedup.kind={kind}").data.dedup
    assert (chosen.data.dedup.scope, chosen.data.dedup.normalize) == ("all", True)
    assert restore_settings(json.loads(json.dumps(dump_settings(chosen)))) == chosen


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.dedup=fuzzy"], r"data\.dedup"),
        (["data.dedup.kind=exact", "data.dedup.threshold=0.9"], r"threshold belongs to data\.dedup\.kind=minhash"),
        (["data.dedup.kind=minhash", "data.dedup.threshold=1.5"], r"data\.dedup\.threshold"),
        (["data.dedup.kind=minhash", "data.dedup.bands=15"], "does not divide the 112 permutations"),
        (["data.dedup.kind=minhash", "data.dedup.ngram=0"], r"data\.dedup\.ngram"),
        (["data.dedup.scope=everything"], r"data\.dedup"),
    ],
)
def test_impossible_values_are_refused(overrides, message):
    """A wrong value is refused with its name, and a value of the other kind is not ignored."""
    with pytest.raises(ConfigurationError, match=message):
        settings(*overrides)
