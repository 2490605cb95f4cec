"""Paths that begin with a home folder."""

from pathlib import Path

import pytest

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.bootstrap.operations.base_of_adapters import with_base
from holdfast.bootstrap.stages.identify.data_form import cache_folder
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded

STRANGE = "~no-such-user/x"


def test_a_home_folder_takes_the_place_of_its_sign(monkeypatch):
    """A path without the sign, also a relative one, stays as it is."""
    monkeypatch.setenv("HOME", "/home/me")
    assert [expanded("~/a"), expanded(Path("a/~b"))] == [Path("/home/me/a"), Path("a/~b")]


@pytest.mark.parametrize(
    "use",
    [
        lambda: load_settings([], [f"run.dir={STRANGE}"], {}).settings.run.directory,
        lambda: load_settings([], [f"run.cache_dir={STRANGE}"], {}).settings.run.cache_directory,
        lambda: cache_folder(load_settings([], [f"data.cache.dir={STRANGE}"], {}).settings.data, None),
        lambda: HuggingfaceTokenizer.load(STRANGE),
        lambda: with_base({"model": {"path": "gpt2", "lora": {}}}, STRANGE),
    ],
    ids=["run", "caches", "tokens", "tokenizer", "base"],
)
def test_a_user_that_the_machine_does_not_know_is_a_mistake_in_the_settings(use):
    """Whatever the path is for, one sentence names it: no traceback, and no folder of that name here."""
    with pytest.raises(ConfigurationError, match=r"^~no-such-user/x begins with a home folder that this machine"):
        use()
