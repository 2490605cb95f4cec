from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.adapters.shared.files.draft_folder import draft_beside, move_draft

_KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.adapters.shared.files.draft_folder import draft_beside
with draft_beside(Path(sys.argv[1])) as draft:
    (draft / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_moved_draft_is_the_folder(tmp_path):
    """A draft that was moved has its files under the name of the folder, and nothing else is there."""
    with draft_beside(tmp_path / "above/model") as draft:
        (draft / "file").write_text("whole")
        move_draft(draft, tmp_path / "above/model")
    assert [path.name for path in (tmp_path / "above").iterdir()] == ["model"]
    assert (tmp_path / "above/model/file").read_text() == "whole"


def test_a_failed_draft_leaves_nothing(tmp_path):
    """A block that raises leaves no draft, and no folder that was made for it."""

    def fail():
        with draft_beside(tmp_path / "new/above/model") as draft:
            (draft / "file").write_text("half")
            (draft / "missing/file").write_text("never")

    with pytest.raises(FileNotFoundError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_draft_of_a_killed_process_is_deleted(tmp_path):
    """The next draft for the same folder deletes one that was abandoned, and none that is in use or of another name."""
    (tmp_path / ".other.1.draft").mkdir()
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "model")], check=False)
    [abandoned] = tmp_path.glob(".model.*")
    assert not (tmp_path / "model").exists()
    with draft_beside(tmp_path / "model") as first, draft_beside(tmp_path / "model") as second:
        assert not abandoned.exists()
        assert first.exists()
        assert second.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".other.1.draft"]
