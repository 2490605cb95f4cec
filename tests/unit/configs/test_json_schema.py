"""The schema by which editors complete and check files of settings."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pydantic
import pytest
from packaging.version import Version

from holdfast.configs.plain import to_plain
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_catalog import schema_text, settings_schema
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.strict_yaml import read_yaml
from holdfast.domain.errors import ConfigurationError

FOLDER = Path(__file__).parents[3] / "configs"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
WRONG = [
    "runn: {name: x}",
    "run: {nam: x}",
    "run: {seed: -1}",
    "run: {seed: '5'}",
    "run: {deterministic: 1}",
    "run: {budget: {steps: 0}}",
    "run: {budget: {step: 10}}",
    "run: {budget: {tokens: 20 million}}",
    "data: {kind: files, path: [3]}",
    "data: {kind: files, path: 3}",
    "data: {kind: python_library, path: x}",
    "data: {sequence_length: none}",
    "data: {packing: {kind: best}}",
    "data: {packing: {overflow: lose}}",
    "data: {task: talk}",
    "data: {cache: {budget: true}}",
    "tokenizer: {vocabulary_size: many}",
    "tokenizer: {kind: train, path: x}",
    "model: {size: 7B}",
    "model: {config: llama}",
    "model: {compile: fast}",
    "model: {lora: {rank: 0}}",
    "optimizer: {learning_rate: fast}",
    "optimizer: {precision: fp4}",
    "optimizer: {schedule: {decay_shape: steep}}",
    "optimizer: {betas: [0.9]}",
    "state_store: {every: -1}",
    "state_store: {archive: {}, nothing: 1}",
    "evaluation: {sampling: {temperature: hot}}",
    "recovery: {early_stopping: {patience: -1}}",
    "monitors: {kind: console}",
    "monitors: [{kind: wandb, projekt: x}]",
    "ledger: {kind: sqlite, file: x}",
    "distributed: {mesh: {tensor: 0}}",
    "distributed: {kind: ray, workers: 2}",
]
RIGHT = [
    "run: {budget: {tokens: 20M}}",
    "data: {path: texts}",
    "data: {path: [texts, more], dedup: minhash, transforms: [clean]}",
    "data: {kind: my_source, options: {a: 1}}",
    "monitors: [console, {kind: wandb, project: x}, mine]",
    "ledger: sqlite",
    "state_store: {disk_budget: 20GiB}",
]


@pytest.fixture(scope="module")
def validator():
    """Return a validator of the schema, which is one itself."""
    schema = settings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", FILES)
def test_the_ready_configurations_are_valid(validator, name):
    """Each file in the package is valid, and tells editors where its schema is."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=settings.schema.json\n")
    assert list(validator.iter_errors(read_yaml(text))) == []


@pytest.mark.skipif(Version(pydantic.VERSION) < Version("2.14"), reason="older pydantic leaves out two bounds")
def test_the_schema_in_the_package_is_current():
    """The file that the configurations name is what `config --schema` prints."""
    assert (FOLDER / "settings.schema.json").read_text(encoding="utf-8") == schema_text() + "\n"


def test_complete_settings_are_valid(validator):
    """What `config` prints is a file for --config, so it is valid too."""
    assert list(validator.iter_errors(to_plain(TrainSettings()))) == []


@pytest.mark.parametrize("text", RIGHT)
def test_short_forms_are_valid(validator, text):
    """A form that settings accept is accepted by the schema."""
    assert list(validator.iter_errors(read_yaml(text))) == []


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_marked(validator, tmp_path, text):
    """A mistake that an editor marks is one that the program refuses too."""
    assert list(validator.iter_errors(read_yaml(text))), text
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape("settings.yaml")):
        load_settings([tmp_path / "settings.yaml"], [], {})
