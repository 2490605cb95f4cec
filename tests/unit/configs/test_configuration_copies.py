"""Copies of the ready configurations, for a user to change."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from jsonschema import Draft202012Validator

from holdfast.bootstrap.cli.main import main
from holdfast.configs import ready_configurations
from holdfast.configs.ready_configurations import FOLDER, list_ready, ready_names, write_copy
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.strict_yaml import read_yaml
from holdfast.domain.errors import ConfigurationError


def schema_of(text):
    """Return the schema that the file with ``text`` names to editors, which read a URI up to the first space."""
    header = text.splitlines()[0]
    uri = urlsplit(header.partition("$schema=")[2].split()[0])
    assert uri.scheme == "file"
    return json.loads(Path(url2pathname(uri.path)).read_text())


@pytest.mark.parametrize("name", ready_names())
def test_a_copy_has_the_settings_of_its_configuration(tmp_path, monkeypatch, name):
    """The file has the settings of its configuration, fits the schema that it names, and names itself in examples."""
    monkeypatch.chdir(FOLDER.parent)  # where files that a configuration names lie
    path = write_copy(name, tmp_path / "mine.yaml")
    text = path.read_text()
    assert f"configs/{name}.yaml" not in text
    assert load_settings([path], [], {}).settings == load_settings([Path(name)], [], {}).settings
    schema = schema_of(text)
    assert schema["title"] == "Settings of Holdfast"
    assert list(Draft202012Validator(schema).iter_errors(read_yaml(text))) == []
    assert f"{name} " in list_ready()


def test_paths_may_have_spaces(tmp_path, monkeypatch, capsys):
    """The commands that ``init`` prints and writes are those of a shell, and editors find the schema of the package."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "my packages"
    package.mkdir()
    for name in ("own_text.yaml", "settings.schema.json"):
        shutil.copy(FOLDER / name, package)
    monkeypatch.setattr(ready_configurations, "FOLDER", package)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/holdfast"])
    assert main(["init", "own_text", "--output", "my texts.yaml"]) == 0
    text = Path("my texts.yaml").read_text()
    assert schema_of(text)["title"] == "Settings of Holdfast"
    example = next(line for line in text.splitlines() if " train " in line)
    assert "holdfast train" in example
    for line in (capsys.readouterr().out.splitlines()[-1], example.removeprefix("#")):
        words = shlex.split(line)
        assert words[words.index("--config") + 1] == "my texts.yaml"


def test_a_file_that_exists_is_left_as_it_is(tmp_path, monkeypatch):
    """A second call refuses to overwrite, and so does one for a folder that does not exist."""
    monkeypatch.chdir(tmp_path)
    path = write_copy("own_text.yaml")
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match=r"own_text\.yaml exists and was left as it is"):
        write_copy("own_text")
    assert path.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="cannot be written, no such file"):
        write_copy("own_text", Path("none/own.yaml"))


def test_an_unknown_configuration_is_refused_with_the_nearest(tmp_path, monkeypatch):
    """The message names the configuration that was probably meant, and no file is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="did you mean chat_lora"):
        write_copy("chat_lor")
    with pytest.raises(ConfigurationError, match=r"no configuration called zzz: init without a name lists them"):
        write_copy("zzz")
    assert list(tmp_path.iterdir()) == []
