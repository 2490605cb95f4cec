"""Settings that name the hub where it may not be asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.bootstrap.stages.open_run.hub_choice import refuse_offline
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError

URL = "hf://datasets/nobody/none/a.txt"
COMMANDS = (["train"], ["prepare"], ["plan"], ["data", "validate"], ["data", "show", "--rows", "2"])
SCRIPT = f"""
import os, sys
from holdfast.bootstrap.cli.main import main
os.environ["HF_HUB_OFFLINE"] = "1"
for command in {COMMANDS}:
    print(main([*command, "data.path={URL}"]), "torch" in sys.modules)
"""


def settings_of(*words):
    return load_settings([], words, {}).settings


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data.path", [f"data.path={URL}"]),
        ("data.path", [f"data.path=[a.txt, {URL}]"]),
        ("data.sources.web.path", [f"data={{kind: mixture, sources: {{web: {{path: {URL}}}}}}}"]),
        ("evaluation.sets.own.path", [f"evaluation.sets={{own: {{path: {URL}}}}}"]),
    ],
)
def test_a_url_of_the_hub_is_refused_offline(monkeypatch, variable, name, words):
    """The setting is named with the remedy, wherever the URL stands; online it is accepted."""
    settings = settings_of(*words)
    for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(each, "0")
    refuse_offline(settings)
    monkeypatch.setenv(variable, "yes")
    with pytest.raises(ConfigurationError, match=f"{name} is {URL}.*unset it, or set {name} to a copy"):
        refuse_offline(settings)


def test_a_source_of_the_host_is_its_own_matter(monkeypatch):
    """A source that the host program brings reads what it likes, and paths of this machine are no URLs of the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigurationError):
        refuse_offline(settings_of(f"data.path={URL}"))
    refuse_offline(settings_of(f"data.path={URL}"), {"data_source"})
    refuse_offline(settings_of("data.path=texts"))


def test_the_refusal_comes_before_any_large_library():
    """Each command that reads data refuses at once, with code 2."""
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["2 False"] * len(COMMANDS), found.stderr
    assert found.stderr.count("HF_HUB_OFFLINE forbids asking it") == len(COMMANDS)
