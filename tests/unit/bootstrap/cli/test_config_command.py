"""What ``config`` shows, and which files ``--config`` finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import holdfast.configs
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.process.program import module_called
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.version import __version__

SHIPPED = sorted(Path(holdfast.configs.__file__).resolve().parent.glob("*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
@pytest.mark.parametrize("form", ["{0}", "{0}.yaml", "configs/{0}.yaml"])
def test_a_configuration_that_ships_is_found_from_any_folder(file, form, monkeypatch, tmp_path):
    """By its name, with or without suffix and folder, and its values say that they are of this package."""
    monkeypatch.chdir(tmp_path)
    found = load_settings([form.format(file.stem)], [], {})
    assert found.settings == load_settings([file], [], {}).settings
    assert found.origins["run.name"] == f"{file.name} of this package"


def test_a_file_of_the_user_comes_first(monkeypatch, tmp_path):
    """A file in the folder where the command runs is never replaced by one of the same name that ships."""
    monkeypatch.chdir(tmp_path)
    Path("own_text.yaml").write_text("run: {name: mine}")
    assert load_settings(["own_text.yaml"], [], {}).settings.run.name == "mine"
    for other in ("elsewhere/own_text.yaml", "__init__.py", "../own_text", str(tmp_path / "own_text")):
        with pytest.raises(ConfigurationError, match="config --list"):
            load_settings([other], [], {})


def test_the_list_names_every_configuration_and_what_it_is_for(capsys):
    """Each line is a name that --config takes, and a sentence."""
    assert main(["config", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [file.stem for file in SHIPPED]
    assert all(line.endswith(".") and len(line.split()) > 5 for line in lines)


def test_only_what_was_changed_can_be_shown(capsys, tmp_path):
    """The lines that some layer set, as YAML that gives the same settings."""
    given = ["--config", "own_text", "data.path=x", "optimizer.clip=2"]
    assert main(["config", "--changed", *given]) == 0
    text = capsys.readouterr().out
    assert "default" not in text
    assert "clip: 2.0  # command line" in text
    (tmp_path / "again.yaml").write_text(text)
    expected = load_settings(["own_text"], given[2:], {}).settings
    assert load_settings([tmp_path / "again.yaml"], [], {}).settings == expected


def test_a_description_may_be_of_some_settings(capsys):
    """Sections and settings narrow the list, sections that are not set by default are described, a slip is told."""
    assert main(["config", "--describe", "optimizer.schedule", "state_store.archive"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("optimizer.schedule.", "state_store.archive")) for line in lines)
    assert any(line.startswith("state_store.archive.url ") for line in lines)
    assert main(["config", "--describe", "optimizer.lr=3"]) == 2
    assert "did you mean optimizer.learning_rate?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "called", "module"),
    [
        ("/x/bin/holdfast", "holdfast", "holdfast"),
        ("/x/holdfast/__main__.py", "python -m holdfast", "holdfast"),
        ("/x/application/__main__.py", "python -m application", "application"),
    ],
)
def test_help_calls_the_program_as_it_was_called(program, called, module, monkeypatch, capsys):
    """Usage and examples name the command that was given, and so do the processes that it starts."""
    monkeypatch.setattr(sys, "argv", [program])
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    text = capsys.readouterr().out
    assert f"usage: {called} train" in text
    assert f"  {called} train --supervise" in text
    assert ("python -m application" in text) is (module == "application")
    assert module_called() == module


def test_the_version_is_told(capsys):
    """``--version`` prints the version of the source, whatever is installed."""
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"holdfast {__version__}\n"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.path=org/b", "model.path (command line) chooses another model"),
        ("model.config.model_type=gpt2", "model.config.model_type (command line) chooses another model"),
        ("model.config.hidden_size=8", None),
        ("model.attention=eager", None),
    ],
)
def test_a_model_of_a_file_that_is_replaced_is_told(override, expected, capsys, tmp_path):
    """Where the command line chooses another model, one line says that the file's model.config is not used."""
    file = tmp_path / "own.yaml"
    file.write_text("model: {config: {model_type: llama, hidden_size: 64}}")
    assert main(["config", "--config", str(file), override]) == 0
    said = f"# model.config ({file}) is not used, because {expected}"
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0] == said) is (expected is not None)
    assert sum("is not used" in line for line in lines) == (expected is not None)


def test_a_batch_in_tokens_is_said_where_the_rows_are_null(capsys):
    """With optimizer.batch_tokens the null of batch_size says where the rows come from."""
    assert main(["config", "optimizer.batch_tokens=4096"]) == 0
    assert "batch_size: null  # from optimizer.batch_tokens (command line)" in capsys.readouterr().out
