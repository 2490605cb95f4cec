"""The folders that settings name."""

from pathlib import Path

from holdfast.bootstrap.doctor.expected_sizes import checkpoint_bytes, named_folders
from tests.support.planted_troubles import settings_of


def test_each_folder_of_the_settings_is_named_with_its_setting(tmp_path):
    """Run folder, caches, archive and scratch are five different folders, each with the setting that moves it."""
    chosen = settings_of(
        f"run.dir={tmp_path}/run",
        f"data.cache.dir={tmp_path}/tokens",
        f"state_store.archive.url=file://{tmp_path}/archive",
        "state_store.encryption.key_from=env:KEY",
        f"state_store.encryption.scratch={tmp_path}/scratch",
        "tokenizer.path=owner/name",
    )
    folders = {name: make() for name, make in named_folders(chosen).items()}
    assert {name: folder.name for name, folder in folders.items()} == {name: name for name in folders}
    assert {name: (folder.path.name, folder.setting) for name, folder in folders.items()} == {
        "run folder": ("run", "run.dir"),
        "token cache": ("tokens", "data.cache.dir"),
        "hub cache": ("hub", "HF_HOME"),
        "archive": ("archive", "state_store.archive.url"),
        "scratch": ("scratch", "state_store.encryption.scratch"),
    }


def test_folders_that_are_not_used_are_not_named():
    """An archive in a bucket, tokens that are read in place, and a run without encryption have no such folders."""
    assert named_folders(settings_of()).keys() == {"run folder", "token cache"}
    chosen = settings_of("data.kind=tokens", "data.path=ids.npy", "state_store.archive.url=s3://bucket/runs")
    assert named_folders(chosen).keys() == {"run folder"}


def test_checkpoints_that_are_there_need_no_more_room(tmp_path):
    """A run that continues needs room only for the checkpoints that are still to come."""
    chosen = settings_of(f"run.dir={tmp_path}", "run.budget.steps=1000", "state_store.keep=4")
    one = checkpoint_bytes(chosen)
    assert named_folders(chosen)["run folder"]().needed == 5 * one
    for step in (100, 200):
        folder = Path(tmp_path, "checkpoints", f"checkpoint-{step}")
        folder.mkdir(parents=True)
        (folder / "COMMIT").write_text("")
    assert named_folders(chosen)["run folder"]().needed == 3 * one


def test_checkpoints_that_are_kept_for_ever_need_room(tmp_path):
    """Milestones count on the disk and in the archive, up to the budget of the disk; those of hours are named."""
    chosen = settings_of(
        f"run.dir={tmp_path}/run",
        "run.budget.steps=1000",
        "state_store.keep=1",
        "state_store.keep_every=100",
        f"state_store.archive.url=file://{tmp_path}/archive",
        "state_store.archive.keep_every=200",
        "state_store.archive.keep_hours=1",
    )
    one, folders = checkpoint_bytes(chosen), named_folders(chosen)
    assert folders["run folder"]().needed == 11 * one
    assert folders["archive"]().needed == (5 + 1 + 1) * one  # of the three newest, 900 is no milestone
    assert folders["archive"]().contents == "its checkpoints without those of keep_hours"
    capped = chosen.state_store.model_copy(update={"disk_budget": "60MB"})
    chosen = chosen.model_copy(update={"state_store": capped})
    assert named_folders(chosen)["run folder"]().needed == 60e6
