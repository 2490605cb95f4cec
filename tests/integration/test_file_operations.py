"""Operations on files as the adapters share them."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.adapters.shared.files.file_operations import FileOperations, explain


def test_opening_neither_follows_a_link_nor_waits_for_a_pipe(tmp_path):
    """A file that became a link or a pipe after it was looked at is no way out and no way to hang."""
    (tmp_path / "link").symlink_to(__file__)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="symbolic links"):
        FileOperations().open_file(tmp_path / "link")
    with pytest.raises(OSError, match="in place of a file"):
        FileOperations().open_file(tmp_path / "pipe")


def test_a_tree_is_removed_without_following_a_link(tmp_path):
    """Deleting a tree deletes the links in it and nothing that they lead to."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_bytes(b"kept")
    (tmp_path / "tree/inner").mkdir(parents=True)
    (tmp_path / "tree/inner/file").write_bytes(b"gone")
    (tmp_path / "tree/inner/link").symlink_to(tmp_path / "kept")
    FileOperations().remove_tree(tmp_path / "tree")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["kept", "kept/file"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.ESTALE, None])
def test_an_error_is_explained_with_a_remedy(code):
    """Whatever the system reports, a person is told what it says and what to do."""
    error = OSError("strange") if code is None else OSError(code, os.strerror(code))
    said, _, remedy = explain(error).partition(": ")
    assert said == ("strange" if code is None else os.strerror(code).lower())
    assert remedy
