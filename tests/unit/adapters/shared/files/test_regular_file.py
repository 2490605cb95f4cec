"""Files in a run folder are regular ones, and what is written stays in the folder."""

from __future__ import annotations

import os

import pytest

from holdfast.adapters.shared.files.regular_file import IrregularFileError, open_regular, regular


def test_nothing_is_written_through_a_link(tmp_path):
    """A symbolic link in a run folder of others cannot lead a writer to a file elsewhere; reading it is harmless."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for mode in ("ab", "a+b", "wb", "r+b"):
        with pytest.raises(IrregularFileError, match="symbolic link"), open(tmp_path / "link", mode, opener=regular):
            pass
    assert (tmp_path / "victim").read_text() == "precious"
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"precious"


def test_a_pipe_holds_up_nobody(tmp_path):
    """A pipe in place of a file is refused at once, also by a writer."""
    os.mkfifo(tmp_path / "pipe")
    for mode in ("rb", "ab"):
        with pytest.raises(IrregularFileError, match="pipe"), open(tmp_path / "pipe", mode, opener=regular):
            pass
