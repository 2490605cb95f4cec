"""The page of names from LlamaHome and Vorox."""

from __future__ import annotations

import re

import pytest
import yaml

from holdfast.bootstrap.cli.main import _parser
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_catalog import describe_settings
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import ROOT

PAGE = (ROOT / "docs/seeds.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (?P<name>[^|]+) \| (?P<here>[^|]+) \|$", PAGE, re.MULTILINE)
CONFIGURATIONS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = {name for action in _parser()[0]._actions for name in action.choices or ()}


def named():
    """Return the words of the second column that are settings, with the value if one is named."""
    spans = [span for _, here in ROWS for span in re.findall(r"`([^`]+)`", here)]
    return {span for span in spans if span.partition("=")[0].partition(".")[0] in TrainSettings.model_fields}


@pytest.mark.parametrize("setting", sorted(named()))
def test_a_named_setting_exists(setting):
    """Each setting of the table is one that there is."""
    assert describe_settings([setting.partition("=")[0]])


def test_the_tables_name_commands_and_pages():
    """Each row names a setting, a command, an entry point, a page or says that there is no setting."""
    assert len(ROWS) >= 50
    assert len(named()) >= 40
    for name, here in ROWS:
        spans = set(re.findall(r"`([^`]+)`", here))
        is_answered = spans & named() or {span.partition(" ")[0] for span in spans} & COMMANDS or "](" in here
        assert is_answered or name in {"feature", "name", "---"} or "no setting" in here, name


def test_the_configurations_are_understood_as_they_are_written():
    """Each name of the two documents becomes the setting of its row, and none is refused."""
    assert [list(yaml.safe_load(text)) for text in CONFIGURATIONS] == [["training"], ["data"]]
    rows = {name.strip("`"): re.findall(r"`([^`]+)`", here) for name, here in ROWS if name.startswith("`")}
    for text in CONFIGURATIONS:
        for path in leaves(yaml.safe_load(text)):
            assert rows[path], path


@pytest.mark.parametrize("number", [0, 1])
def test_a_configuration_loads(number, tmp_path):
    """The YAML of each document loads, and its values are those of the settings."""
    (tmp_path / "theirs.yaml").write_text(CONFIGURATIONS[number])
    settings = load_settings([tmp_path / "theirs.yaml"], [], {}).settings
    if number == 0:
        assert (settings.optimizer.micro_batch, settings.data.prefetch, settings.resources.max_memory) == (
            "auto",
            2,
            0.8,
        )
        assert (settings.optimizer.precision, settings.model.gradient_checkpointing) == ("bf16", "full")
        assert (settings.model.compile, settings.data.workers) == ("reduce-overhead", None)
        assert (settings.resources.gpu_memory_fraction, settings.resources.io_queue_size) == (0.9, 1000)
    else:
        data = settings.data
        assert (data.kind, data.label, data.prefetch_samples) == ("files", "dolma", 1000)
        assert data.path == ("s3://bucket/train_part1.txt", "s3://bucket/train_part2.txt")
        assert (settings.ledger.kind, settings.ledger.dsn) == ("postgres", "postgresql://user:pass@host:port/db")


def leaves(tree, above=""):
    """Yield the dotted name of each value."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"
