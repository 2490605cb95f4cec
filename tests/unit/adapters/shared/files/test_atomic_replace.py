"""Atomic replacement of a file."""

from __future__ import annotations

import os

import pytest

from holdfast.adapters.shared.files.file_operations import replace_file


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(is_shared, is_durable, tmp_path):
    """The file has the new contents, and its folder holds no draft."""
    path = tmp_path / "a.json"
    for content in (b"a long first", b"second"):
        replace_file(path, content, is_shared=is_shared, is_durable=is_durable)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_failed_replacement_leaves_everything_as_it_was(is_durable, tmp_path):
    """What cannot be replaced raises ``OSError``, stays as it was, and no draft is left."""
    path = tmp_path / "a.json"
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match=r"a\.json"):
        replace_file(path, b"new", is_durable=is_durable)
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_in_place_of_the_draft_is_refused(tmp_path):
    """A pipe that lies where the draft is written raises ``OSError`` in place of waiting for a reader."""
    os.mkfifo(tmp_path / ".a.json.new")
    with pytest.raises(OSError, match=r"a\.json\.new"):
        replace_file(tmp_path / "a.json", b"new")
    assert not (tmp_path / "a.json").exists()


def test_the_drafts_of_killed_processes_are_deleted_in_the_end(tmp_path):
    """A shared file is written again without the old drafts for it; those of other files and of now stay."""
    names = [".a.json.1.new", ".a.json.2.new", ".b.json.1.new"]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    for name in (names[0], names[2]):
        os.utime(tmp_path / name, (0, 0))
    replace_file(tmp_path / "a.json", b"whole", is_shared=True)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", *names[1:]}
