from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest

from holdfast.adapters.shared.files.committed_folder import (
    draft_beside,
    erase,
    is_erased,
    make_folders,
    move,
    move_draft,
)
from holdfast.adapters.shared.files.file_operations import FileOperations
from tests.support.file_faults import FailAt, Recorder, WatchedFiles

_KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.adapters.shared.files.committed_folder import draft_beside
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


@pytest.mark.parametrize("point", range(3))
def test_a_move_that_is_not_durable_is_undone(tmp_path, point):
    """Whatever fails of a move, the rename or the sync of either parent, the folder is where it was."""
    for name in ("from/draft", "to"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(OSError, match="Input/output"):
        move(WatchedFiles(FailAt(point, errno.EIO)), tmp_path / "from/draft", tmp_path / "to/folder")
    assert (tmp_path / "from/draft").is_dir()
    assert not (tmp_path / "to/folder").exists()
    move(WatchedFiles(seen := Recorder()), tmp_path / "from/draft", tmp_path / "to/folder")
    assert [(name, path.name) for name, path in seen.operations[1:]] == [("sync_folder", "to"), ("sync_folder", "from")]


def test_a_new_folder_whose_name_is_not_durable_is_removed(tmp_path):
    """Else the next call would find it and not sync its name."""
    with pytest.raises(OSError, match="Input/output"):
        make_folders(WatchedFiles(FailAt(3, errno.EIO)), tmp_path / "above/new")
    assert [path.name for path in tmp_path.rglob("*")] == ["above"]
    (tmp_path / "above/file").touch()
    with pytest.raises(FileExistsError):
        make_folders(FileOperations(), tmp_path / "above/file")


@pytest.mark.parametrize("point", range(10))
def test_an_erasure_may_be_repeated(tmp_path, point):
    """Wherever an erasure stops, the next one completes it, and the record of the first that wrote one stays."""
    (folder := tmp_path / "folder").mkdir()
    for name in ("key", "other"):
        (folder / name).write_text(name)
    files = WatchedFiles(FailAt(point, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        erase(files, folder, [folder / "key"], {"at": 1})
    was_recorded = (folder / "ERASED.json").exists()
    erase(FileOperations(), folder, [path for path in [folder / "key"] if path.exists()], {"at": 2})
    assert is_erased(folder)
    assert json.loads((folder / "ERASED.json").read_text()) == {"at": 1 if was_recorded else 2}
