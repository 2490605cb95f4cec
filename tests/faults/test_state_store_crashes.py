"""T1, T4 and T5: a state store on disk after a kill, a full disk or a failing one, whenever it happens."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from tests.support.file_faults import (
    MEMORY,
    FailAt,
    Recorder,
    WatchedFiles,
    files_under,
    litter,
    payload,
    run_through,
    snapshot_of,
)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def tmp_path():
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@cache
def outcomes_of(scenario: str) -> list[dict]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        result = subprocess.run(
            [sys.executable, str(Path(__file__).parents[1] / "support/crash_driver.py"), scenario, folder],
            env={"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("scenario", "steps"),
    [("first", {None, 3}), ("save", {2, 3}), ("quarantine", {2}), ("evict", {3}), ("supersede", {2, 3, 4})],
    ids=["first", "save", "load", "evict", "supersede"],
)
def test_a_kill_at_any_point_loses_nothing(scenario, steps):
    """Killed before or after any file operation, a store recovers by itself to the last acknowledged step or later."""
    outcomes = outcomes_of(scenario)
    assert {outcome["step"] for outcome in outcomes} == steps
    for outcome in outcomes:
        assert outcome["second_is_no_op"], outcome
        assert outcome["goes_on"], outcome
        assert outcome["damaged"] == [], outcome
        assert outcome["litter"] == outcome["halves"] == [], outcome


def test_a_kill_at_any_point_of_a_quarantine_keeps_each_bad_checkpoint_once():
    """Killed while it sets damaged checkpoints aside, a store has them all in quarantine in the end, each once."""
    outcomes = outcomes_of("quarantine")
    expected = ["checkpoint-3.incomplete", "checkpoint-4.wrong-size"]
    assert [outcome["quarantined"] for outcome in outcomes] == [expected] * len(outcomes)
    assert len(outcomes) > 10


def test_a_kill_at_any_point_of_a_return_keeps_every_checkpoint():
    """Killed while later checkpoints are moved out of the way, a store has lost none: the latest goes first."""
    places = {step: {f"checkpoint-{past}" for past in range(step + 1, 5)} for step in (2, 3, 4)}
    for outcome in outcomes_of("supersede"):
        moved = {name.partition(".")[0] for name in outcome["superseded"]}
        assert moved == places[outcome["step"]] | {"checkpoint-4"}, outcome
        assert len(outcome["superseded"]) == 1 + (4 - outcome["step"]), outcome


def test_a_kill_at_any_point_of_a_save_sets_nothing_aside():
    """A killed save leaves nothing under the name of a checkpoint that would have to be set aside."""
    outcomes = outcomes_of("save")
    assert [outcome["quarantined"] for outcome in outcomes] == [[]] * len(outcomes)
    assert len(outcomes) > 50


def new_run(root: Path) -> None:
    store = DiskStateStore(root, Retention(2))
    for step in (1, 2):
        store.save(snapshot_of(step))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for-good"])
def test_a_failing_operation_damages_nothing(tmp_path, code, for_good):
    """Whichever operation of a save fails, older checkpoints keep their bytes, and once it is mended saving works."""
    for point in range(1000):
        root = tmp_path / f"{point}"
        new_run(root)
        before = files_under(root / "checkpoints")
        fault = FailAt(point, code, for_good=for_good)
        files = WatchedFiles(fault)
        store = DiskStateStore(root, Retention(2), files=files)
        try:
            store.save(snapshot_of(3, fault))
            possible = {3}
        except StateError:
            possible = {2, 3} if for_good else {2}
            assert before.items() <= files_under(root / "checkpoints").items(), fault
            if not for_good:
                assert before == files_under(root / "checkpoints"), fault
                assert litter(root) == [], fault
        has_failed, files.around = bool(fault.failed), run_through
        loaded = store.load()
        assert loaded.rejected == ()
        assert loaded.info.progress.step in possible, fault
        store.save(snapshot_of(4))
        assert litter(root) == [], fault
        loaded = store.load()
        assert loaded.info == store.list()[-1]
        assert payload(4).items() <= files_under(loaded.folder).items()
        assert len(store.list()) == 2
        if not has_failed:
            break
    assert point > 30


def test_a_full_disk_is_told_in_one_sentence(tmp_path):
    """The error of a failed save names the place and what to do."""
    with pytest.raises(StateError) as caught:
        DiskStateStore(tmp_path, Retention(2), files=WatchedFiles(FailAt(8, errno.ENOSPC))).save(snapshot_of(3))
    message = str(caught.value)
    assert str(tmp_path / "checkpoints/checkpoint-3") in message
    assert "no space left on device: free some space" in message
    assert "\n" not in message


def test_a_disk_that_cannot_be_read_sets_nothing_aside(tmp_path):
    """Loading from a disk that fails raises ``StateError`` at whichever file it is, and moves nothing."""
    new_run(tmp_path)
    before = files_under(tmp_path)
    for point in range(1000):
        fault = FailAt(point, errno.EIO)
        store = DiskStateStore(tmp_path, Retention(2), files=WatchedFiles(fault))
        try:
            store.load()
        except StateError:
            assert files_under(tmp_path) == before
        if not fault.failed:
            break
    assert point == len(before) // 2, "each file of the newest checkpoint was one point"


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_passed_over(tmp_path):
    """One that the training process deletes under a reader is neither an error nor reported: an older one is used."""
    new_run(tmp_path)

    def delete_newest(name, path, operation):
        if path.parent.name == "checkpoint-2":
            path.parent.rename(tmp_path / ".trash" / "gone")
        return operation()

    loaded = DiskStateStore(tmp_path, Retention(2), files=WatchedFiles(delete_newest)).load()
    assert (loaded.info.progress.step, loaded.rejected) == (1, ())


def test_nothing_is_vouched_for_before_it_is_durable(tmp_path):
    """Files are synced before COMMIT is written, the folder before it gets its name, its parents before a deletion."""
    new_run(tmp_path)
    recorder = Recorder()
    DiskStateStore(tmp_path, Retention(2), files=WatchedFiles(recorder)).save(snapshot_of(3))
    operations = [(name, path.relative_to(tmp_path).as_posix()) for name, path in recorder.operations]
    draft = next(path for name, path in operations if name == "make_folder")
    commit = operations.index(("write_file", f"{draft}/COMMIT"))
    publish = operations.index(("rename", draft))
    retire = operations.index(("rename", "checkpoints/checkpoint-1"))
    deletions = [place for place, (name, _) in enumerate(operations) if name in {"remove_file", "remove_folder"}]
    parents = {("sync_folder", "checkpoints"), ("sync_folder", ".tmp")}

    assert {("sync_file", f"{draft}/{name}") for name in [*payload(3), "MANIFEST.json"]} <= set(operations[:commit])
    assert ("sync_file", f"{draft}/COMMIT") in operations[commit:publish]
    assert {("sync_folder", draft), ("sync_folder", f"{draft}/rng")} <= set(operations[commit:publish])
    assert parents <= set(operations[publish:retire])
    assert {("sync_folder", "checkpoints"), ("sync_folder", ".trash")} <= set(operations[retire : deletions[0]])
    assert publish < retire < deletions[0]


def test_a_new_run_folder_is_durable_with_its_first_checkpoint(tmp_path):
    """Every folder that the first save makes is synced into its parent before the checkpoint gets its name."""
    recorder = Recorder()
    DiskStateStore(tmp_path / "deep/run", Retention(2), files=WatchedFiles(recorder)).save(snapshot_of(1))
    publish = next(place for place, (name, _) in enumerate(recorder.operations) if name == "rename")
    made = [path for name, path in recorder.operations[:publish] if name == "make_folder"]
    assert tmp_path / "deep" in made
    for folder in made:
        if folder.parent.name == ".tmp":
            continue  # its own name may be lost: nobody was told of it
        since = recorder.operations.index(("make_folder", folder))
        assert ("sync_folder", folder.parent) in recorder.operations[since:publish]


def test_what_a_failed_deletion_left_goes_at_the_next_start(tmp_path):
    """Whichever operation of a save fails for good, ``tidy`` at the next start removes the litter and nothing else."""
    recorder = Recorder()
    store = DiskStateStore(tmp_path / "counted", Retention(1), files=WatchedFiles(recorder))
    for step in (1, 2):
        store.save(snapshot_of(step))
    for point in range(len(recorder.operations)):
        root = tmp_path / f"{point}"
        failing = DiskStateStore(root, Retention(1), files=WatchedFiles(FailAt(point, errno.EIO, for_good=True)))
        with contextlib.suppress(StateError):
            for step in (1, 2):
                failing.save(snapshot_of(step))
        before = files_under(root / "checkpoints") if root.exists() else {}
        DiskStateStore(root, Retention(1)).tidy()
        assert litter(root) == [], recorder.operations[point]
        assert (files_under(root / "checkpoints") if root.exists() else {}) == before
