"""Runs on the command line, by folder or by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.bootstrap.cli.arguments import run_folder
from holdfast.bootstrap.cli.shell_completion import runs_for


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Be in a folder with two runs, one of which has the name of another folder."""
    for folder in ("runs/mine", "runs/texts", "texts"):
        (tmp_path / folder).mkdir(parents=True)
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
    ],
)
def test_a_run_is_named_by_its_folder_or_by_its_name(text, folder):
    """A name stands for the run in runs, unless a file or folder of that name is there."""
    assert run_folder(text) == Path(folder)


def test_the_shell_offers_names_and_folders():
    """Completion offers a run by its name and by its folder."""
    offered = set(runs_for(""))
    assert {"mine", "runs/mine"} <= offered
