"""The free space of the file system of a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.bootstrap.stages.identify.data_form import cache_room, free_bytes, nearest_folder


@pytest.fixture
def own_disk(tmp_path, monkeypatch):
    """Return a folder with 1,000 free bytes, in a file system of its own, while other folders have 10."""
    own = tmp_path / "own"
    own.mkdir()

    def usage(path):
        return SimpleNamespace(free=1000 if path.resolve().is_relative_to(own) else 10)

    monkeypatch.setattr("shutil.disk_usage", usage)
    return own


def test_a_folder_that_exists_counts_itself(own_disk):
    """A run folder that is mounted, or linked to another disk, has the free space of that disk."""
    assert free_bytes(own_disk) == 1000
    assert free_bytes(own_disk.parent) == 10
    link = own_disk.parent / "linked"
    link.symlink_to(own_disk)
    assert free_bytes(link) == 1000
    assert cache_room(link) == 900


def test_a_folder_to_come_counts_the_one_above_it(own_disk):
    """A folder that does not exist yet has the free space of the nearest folder above it, relative to here too."""
    assert nearest_folder(own_disk / "runs" / "new") == own_disk
    assert free_bytes(own_disk / "runs" / "new") == 1000
    assert free_bytes(own_disk.parent / "runs" / "new") == 10


def test_a_relative_folder_begins_here(own_disk, monkeypatch):
    """A relative path is looked up in the working directory."""
    monkeypatch.chdir(own_disk)
    assert nearest_folder(Path("runs/new")) == own_disk
