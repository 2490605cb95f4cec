"""Checkpoints that a person asked to be kept."""

from functools import partial

import pytest

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.bootstrap.cli.main import main
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import snapshot_of


@pytest.fixture
def run(tmp_path):
    """Return a run folder with one checkpoint, of a store that keeps one."""
    DiskStateStore(tmp_path, Retention(1)).save(snapshot_of(1, {"model": b"one"}))
    return tmp_path


def steps_after(run, *steps):
    store = DiskStateStore(run, Retention(1))
    for step in steps:
        store.save(snapshot_of(step, {}))
    return [info.progress.step for info in store.list()]


def test_a_pinned_checkpoint_stays_until_it_is_released(run, capsys):
    """It outlives any number of later ones, and the first save after its release deletes it."""
    assert main(["pin", str(run), "1"]) == 0
    assert steps_after(run, 2, 3) == [1, 3]
    assert main(["pin", str(run), "1"]) == 0
    assert main(["pin", str(run), "1", "--release"]) == 0
    assert steps_after(run, 4) == [4]
    assert "kept until --release" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["7"], ["1", "--release"]])
def test_what_is_not_there_cannot_be_pinned_nor_released(run, capsys, arguments):
    """A step without a checkpoint, and one that nobody pinned, are one sentence and exit code 4."""
    assert main(["pin", str(run), *arguments]) == 4
    assert str(run) in capsys.readouterr().err


def test_pins_in_a_folder_that_is_a_link_are_refused(run, tmp_path_factory):
    """A link in the place of the folder of pins could lead anywhere."""
    (run / "pins").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    folder = StoreFolder(run, FileOperations())
    for touch in (folder.pinned, partial(folder.pin, 1), partial(folder.unpin, 1)):
        with pytest.raises(StateError, match="is a link"):
            touch()
    assert steps_after(run, 2, 3) == [1, 2, 3]
