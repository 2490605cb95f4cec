"""Runs on the command line, by folder or by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.adapters.shared.audit_log import AuditLog
from holdfast.bootstrap.cli.arguments import run_folder
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.cli.shell_completion import runs_for


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Be in a folder with runs, some of which have the name of another folder, and some a record."""
    for folder in ("runs/mine", "runs/texts", "texts", "runs/gpt2", "gpt2", "runs/copied", "copied"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("runs/gpt2", "runs/copied", "copied"):
        (tmp_path / folder / "run.json").touch()
    (tmp_path / "run.json").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("mine", "runs/mine"),
        ("runs/mine", "runs/mine"),
        ("texts", "texts"),
        ("runs/texts", "runs/texts"),
        ("absent", "absent"),
        ("sub/mine", "sub/mine"),
        (".", "."),
        ("..", ".."),
        ("gpt2", "runs/gpt2"),
        ("./gpt2", "gpt2"),
        ("copied", "copied"),
        ("n" * 300, "n" * 300),
    ],
)
def test_a_run_is_named_by_its_folder_or_by_its_name(text, folder):
    """A name stands for the run in runs, unless a folder of that name is there that is a run too."""
    assert run_folder(text) == Path(folder)


def test_the_shell_offers_names_and_folders():
    """Completion offers a run by its name and by its folder."""
    offered = set(runs_for(""))
    assert {"mine", "runs/mine"} <= offered


def test_the_audit_of_a_run_is_found_by_name(capsys):
    """``audit`` takes the name of a run, before which a file of that name is meant."""
    AuditLog(Path("runs/gpt2/audit.jsonl")).close()
    assert main(["audit", "gpt2"]) == 0
    assert capsys.readouterr().out == "runs/gpt2/audit.jsonl: no entries\n"
    Path("gpt2").rmdir()
    AuditLog(Path("gpt2")).close()
    assert main(["audit", "gpt2"]) == 0
    assert capsys.readouterr().out == "gpt2: no entries\n"


def test_settings_are_not_named_as_required(capsys):
    """A command without its folder asks for the folder only, as settings may be left out."""
    with pytest.raises(SystemExit):
        main(["export", "runs/mine"])
    assert capsys.readouterr().err.endswith("the following arguments are required: FOLDER\n")
