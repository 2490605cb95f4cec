"""The archive of a run as its start finds it."""

import json
import shutil

import pytest
from pydantic import ValidationError

from holdfast.application.inbox import Inbox
from holdfast.bootstrap.adapter_choice.state_stores import (
    StoreRequest,
    archive_in_use,
    claim_archive,
    disk_store,
    refuse_old_copies,
)
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.run_folder.layout import RECORD
from holdfast.bootstrap.run_folder.record_file import replace_record
from holdfast.configs.rendering import dump_settings
from holdfast.configs.sections.run import RunSettings
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import AcknowledgeMove, StopRun
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.testing.snapshots import snapshot_of
from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny


@pytest.fixture
def start(tmp_path):
    """Return a function that opens the store of a run folder with the archive of this test, as a start does."""

    def open_store(inbox=None):
        settings = DiskStateStoreSettings(archive={"url": str(tmp_path / "archive")})
        return disk_store(StoreRequest(settings, RunSettings(), tmp_path / "run", inbox or Inbox(), lambda _: None))

    return open_store


def record_of(run):
    return json.dumps({"schema": 1, "id": run, "settings": {}, "auto": {}, "facts": {}, "history": []})


def train(folder, store, run, *steps):
    """Do with ``store`` what the run of this id does: take its archive, and save."""
    with archive_in_use(store, folder, Inbox()):
        folder.mkdir(exist_ok=True)
        replace_record(folder, record_of(run))
        claim_archive(store, run)
        for step in steps:
            store.save(snapshot_of(step, {"model": b"%d" % step, RECORD: record_of(run).encode()}))
            store.flush()


def test_a_lost_disk_gets_the_record_of_the_newest_copy(tmp_path, start):
    """An empty run folder gets run.json and the checkpoint, and the run of that id may go on there."""
    train(tmp_path / "run", start(), "one", 1, 2)
    shutil.rmtree(tmp_path / "run")
    store = start()
    with archive_in_use(store, tmp_path / "run", Inbox()):
        assert json.loads((tmp_path / "run" / RECORD).read_text())["id"] == "one"
        claim_archive(store, "one")
        assert store.load().info.progress.step == 2


def test_what_was_rejected_on_the_way_is_told_by_the_load(tmp_path, start):
    """A copy that did not verify while the record was looked for is told once the run restores."""
    train(tmp_path / "run", start(), "one", 1, 2)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "archive/default/checkpoint-2/model").write_bytes(b"x")
    store = start()
    with archive_in_use(store, tmp_path / "run", Inbox()):
        loaded = store.load()
        assert loaded.info.progress.step == 1
        assert [rejected.name for rejected in loaded.rejected] == ["checkpoint-2"]
        assert store.load().rejected == ()


def test_copies_of_another_run_are_never_taken(tmp_path, start):
    """A run folder with a record of its own and no checkpoints does not go on from another run's copies."""
    train(tmp_path / "run", start(), "one", 1)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").mkdir()
    replace_record(tmp_path / "run", record_of("another"))
    with pytest.raises(StateError, match="another run"), archive_in_use(start(), tmp_path / "run", Inbox()):
        pytest.fail("it was let in")
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_newer_copy_is_taken_rather_than_an_older_disk(tmp_path, start):
    """A disk that was put back to an earlier state goes on from the archive, which is ahead of it."""
    train(tmp_path / "run", start(), "one", 1)
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    train(tmp_path / "run", start(), "one", 2, 3)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "backup").rename(tmp_path / "run")
    store = start()
    with archive_in_use(store, tmp_path / "run", Inbox()):
        assert store.load().info.progress.step == 3


def test_an_archive_without_copies_is_taken_over(tmp_path, start):
    """A run that ended before its first copy leaves nothing that the next one could be taken for."""
    train(tmp_path / "run", start(), "one")
    shutil.rmtree(tmp_path / "run")
    train(tmp_path / "run", start(), "two", 1)
    assert (tmp_path / "archive/default/run").read_text() == "two"


def test_a_copy_without_a_record_is_a_sentence(tmp_path, start):
    """A checkpoint of which nobody can tell what it is of is not gone on from."""
    store = start()
    with archive_in_use(store, tmp_path / "run", Inbox()):
        claim_archive(store, "one")
        store.save(snapshot_of(1, {"model": b"one"}))
        store.flush()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StateError, match=RECORD), archive_in_use(start(), tmp_path / "run", Inbox()):
        pytest.fail("it was let in")


def test_a_stop_while_another_run_holds_the_archive_begins_nothing(tmp_path, start):
    """A run that is asked to stop while it waits for the lease ends without a record of its own."""
    inbox = Inbox()
    inbox.post(StopRun("enough"))
    with archive_in_use(start(), tmp_path / "run", Inbox()):
        waiting = start(inbox)
        with (
            pytest.raises(StateError, match="still leased by another run at the stop"),
            archive_in_use(waiting, tmp_path / "other", inbox),
        ):
            pytest.fail("it was let in")
    assert not (tmp_path / "other").exists()


def test_a_fresh_run_is_refused_an_archive_with_copies(tmp_path, start):
    """--fresh would leave copies that the new run would be taken for: it asks for another place."""
    sections = {"data": {"kind": "python_library"}}
    archive = {"archive": {"url": str(tmp_path / "archive")}}
    settings = TrainSettings(**sections, state_store=archive)
    refuse_old_copies(settings)
    train(tmp_path / "run", start(), "one", 1)
    with pytest.raises(ConfigurationError, match=r"another run\.name"):
        refuse_old_copies(settings)
    refuse_old_copies(TrainSettings(**sections))


def test_inspect_tells_where_copies_lie(tmp_path, start, capsys):
    """Asked for the archive too, it names the copies beside what is on the disk, and those that are nowhere else."""
    settings = {"state_store": {"archive": {"url": str(tmp_path / "archive")}}, "data": {"kind": "python_library"}}
    record = json.loads(record_of("one")) | {"settings": dump_settings(TrainSettings(**settings))}
    store = start()
    train(tmp_path / "run", store, "one", 1, 2, 3)
    replace_record(tmp_path / "run", json.dumps(record))
    shutil.rmtree(tmp_path / "run/checkpoints/checkpoint-1")
    assert main(["pin", str(tmp_path / "run"), "3"]) == 0
    assert main(["inspect", str(tmp_path / "run"), "--archive"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.strip()[:1].isdigit()] == ["archived", "archived"]
    assert "pinned, archived" in lines[-4]
    assert "in the archive alone: 1" in lines
    assert main(["inspect", str(tmp_path / "run"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(found["pinned"], found["tiers"]) for found in report["checkpoints"]] == [
        (False, ["disk"]),
        (True, ["disk"]),
    ]
    assert report["archived"] is None


def test_an_archive_that_is_not_there_cannot_be_asked(tmp_path, capsys):
    """A run without an archive is told to leave the option out, with exit code 4."""
    record = json.loads(record_of("one")) | {"settings": dump_settings(TrainSettings(data={"kind": "python_library"}))}
    tmp_path.joinpath("run").mkdir()
    replace_record(tmp_path / "run", json.dumps(record))
    assert main(["inspect", str(tmp_path / "run"), "--archive"]) == 4
    assert "leave out --archive" in capsys.readouterr().err


def test_a_disk_budget_needs_somewhere_to_move(tmp_path):
    """A budget without an archive would delete nothing, and one that is no size says what a size is."""
    with pytest.raises(ValidationError, match=r"set archive\.url"):
        DiskStateStoreSettings(disk_budget="20GiB")
    with pytest.raises(ValidationError, match="write a number"):
        DiskStateStoreSettings(disk_budget="much", archive={"url": str(tmp_path)})
    assert DiskStateStoreSettings(disk_budget="20GiB", archive={"url": str(tmp_path)}).disk_budget == "20GiB"


def test_a_full_disk_is_emptied_as_configured(tmp_path):
    """What the settings name as budget and archive is what moves the oldest away, and the loop hears of it."""
    settings = DiskStateStoreSettings(archive={"url": str(tmp_path / "archive")}, disk_budget="0.01MB", keep=100)
    inbox = Inbox()
    store = disk_store(StoreRequest(settings, RunSettings(), tmp_path / "run", inbox, lambda _: None))
    with archive_in_use(store, tmp_path / "run", Inbox()):
        for step in range(1, 5):
            store.save(snapshot_of(step, {"model": bytes(4000)}))
            store.flush()
        assert [info.progress.step for info in store.list()] == [3, 4]
    moved = [command for command in inbox.drain() if isinstance(command, AcknowledgeMove)]
    assert moved == [AcknowledgeMove(step, Tier.DISK, Tier.ARCHIVE, "the disk is nearly full") for step in (1, 2)]


def test_a_copy_of_a_run_keeps_its_hands_off_the_archive_of_the_original(tmp_path):
    """Neither a start, nor a return to a step, nor an erasure in a copy changes the copies of the original."""
    archive = "state_store.archive.url=archive"
    settings = tiny(corpus(tmp_path), SAME_RHYTHM, "run.name=x", archive, "state_store.every=2", "state_store.keep=10")
    assert run_here("train", *settings, "run.budget.steps=6", cwd=tmp_path).returncode == 0
    shutil.copytree(tmp_path / "runs/x", tmp_path / "runs/copy")
    before = sorted(tmp_path.glob("archive/x/checkpoint-*/*"))
    assert before
    for command in (
        ["train", *settings, "run.budget.steps=8", "run.dir=runs/copy", "--from-step", "2"],
        ["train", *settings, "run.budget.steps=8", "run.dir=runs/copy"],
        ["erase", "runs/copy", "--yes", "--unencrypted"],
    ):
        process = run_here(*command, cwd=tmp_path)
        assert process.returncode == 4, process.stderr
        assert "holds copies of another run" in process.stderr
        assert sorted(tmp_path.glob("archive/x/checkpoint-*/*")) == before
    assert run_here("train", *settings, "run.budget.steps=8", cwd=tmp_path).returncode == 0
