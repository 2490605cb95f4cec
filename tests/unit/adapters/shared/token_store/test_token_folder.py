"""Drafts of dead processes are swept away, and those of living ones are left alone."""

from __future__ import annotations

import fcntl
import os

import pytest

from holdfast.adapters.shared.files.committed_folder import lock_of_folder


@pytest.mark.parametrize("ending", ["published", "deleted"])
def test_a_draft_whose_owner_ends_meanwhile_is_gone(tmp_path, monkeypatch, ending):
    """Between the opening of a draft and its lock its owner may publish or delete it: there is nothing to sweep."""
    draft = tmp_path / "draft"
    draft.mkdir()
    flock, opened = fcntl.flock, []

    def end_first(descriptor, how):
        opened.append(descriptor)
        if ending == "published":
            draft.rename(tmp_path / "published")
        else:
            draft.rmdir()
        return flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", end_first)
    assert lock_of_folder(draft) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_a_draft_is_locked_once(tmp_path):
    """A second lock of a draft is refused until the first one is closed."""
    lock = lock_of_folder(tmp_path)
    assert lock is not None
    assert lock_of_folder(tmp_path) is None
    os.close(lock)
    again = lock_of_folder(tmp_path)
    assert again is not None
    os.close(again)
