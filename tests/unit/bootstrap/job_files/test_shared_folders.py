"""Sentences on folders that are not shared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.bootstrap.job_files.job import Volume
from holdfast.bootstrap.job_files.submit_job import notes_on_folders
from holdfast.configs.settings_layers import load_settings
from tests.support.job_examples import job

SHARED = (Volume("claim", "/shared"),)


def notes(each, *overrides, has_own_disks=True):
    """Return the notes on ``each`` job with ``overrides``."""
    settings = load_settings([], overrides, {}).settings
    return [*notes_on_folders(each, settings, has_own_disks=has_own_disks)]


@pytest.mark.parametrize(("command", "key"), [("train", "run.dir"), ("prepare", "run.cache_dir")])
def test_several_machines_need_a_shared_folder(command, key):
    """The folder is named with the setting that moves it, and nothing is said where it lies in a volume."""
    (note,) = notes(job(4, command))
    assert f"set {key} to a shared folder" in note
    assert notes(job(4, command, volumes=SHARED), f"{key}=/shared/x") == []
    assert notes(job(4, command, volumes=SHARED), f"{key}=/shared-not/x") != []


def test_an_archive_is_no_shared_folder():
    """All ranks read the checkpoints in the run folder, so that an archive alone helps one machine only."""
    archive = "state_store.archive.url=s3://bucket/runs"
    assert notes(job(4), archive) != []
    assert notes(job(1), archive) == []
    (note,) = notes(job(1))
    assert "state_store.archive.url" in note


@pytest.mark.parametrize(("kind", "is_shared"), [("nfs4", True), ("fuse.gcsfuse", True), ("ext4", False), ("", False)])
def test_a_cluster_shares_network_file_systems(kind, is_shared, monkeypatch):
    """On a cluster the file system of the folder is looked at, and one machine needs none that is shared."""
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint="/shared", fstype=kind)]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    assert (notes(job(4), "run.dir=/shared/runs/mine", has_own_disks=False) == []) == is_shared
    assert notes(job(1), "run.dir=/shared/runs/mine", has_own_disks=False) == []
