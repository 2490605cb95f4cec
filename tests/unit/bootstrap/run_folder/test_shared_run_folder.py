import errno
import json
import os
import shutil
from contextlib import closing, nullcontext
from copy import deepcopy

import pytest

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.files.regular_file import sealed
from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.run_folder.shared import SharedRunFolder
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, StateError

SETTINGS = {
    "model": {"kind": "decoder", "attention": "auto", "loss": "auto", "gradient_checkpointing": "none"},
    "optimizer": {"learning_rate": 0.1},
    "run": {"name": "run", "seed": 1, "cache_dir": None},
    "data": {"path": "text", "workers": None},
    "monitors": ["console"],
}


class TwoRanks(SingleProcessGroup):
    """The first of two ranks, of which the other one was given ``theirs``."""

    def __init__(self, theirs):
        self.theirs = theirs

    def gather(self, text):
        return [text, json.dumps(self.theirs)]


OWN = {"run": {"seed": 1, "cache_dir": "/elsewhere"}, "data": {"path": "text", "workers": 9}, "monitors": []}


@pytest.mark.parametrize("theirs", [{**SETTINGS, **OWN}, SETTINGS])
def test_ranks_may_differ_in_what_no_step_depends_on(theirs, tmp_path):
    """Each host may have caches, threads and monitors of its own."""
    with closing(SharedRunFolder(tmp_path, TwoRanks(theirs))) as folder:
        folder.begin(SETTINGS)
        folder.write()
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["model"] == SETTINGS["model"]


def begun(place):
    """Begin the run in ``place`` again; return its record, and what is told of its changes."""
    with closing(SharedRunFolder(place, SingleProcessGroup())) as folder:
        told = folder.opening_remarks
        folder.begin(SETTINGS)
        folder.write()
    return json.loads((place / "run.json").read_text()), told


def test_a_copy_of_a_run_is_another_run_unless_the_original_is_gone(tmp_path):
    """Trackers and archives know a run by its id, so a copy gets its own one, once, and a moved folder keeps it."""
    first, _ = begun(tmp_path / "first")
    (tmp_path / "first/trackers.json").write_text('{"sqlite": 30}')
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy, told = begun(tmp_path / "copy")
    assert copy["id"] != first["id"]
    assert copy["history"][-1]["copied_from"] == str(tmp_path / "first")
    assert len(told) == 1
    assert told[0].startswith(f"this is a copy of {tmp_path / 'first'}, which is still there: it is a run of its own")
    assert not (tmp_path / "copy/trackers.json").exists()
    assert (begun(tmp_path / "copy")[0]["id"], begun(tmp_path / "first")[0]["id"]) == (copy["id"], first["id"])
    assert (tmp_path / "first/trackers.json").exists()
    (tmp_path / "first").rename(tmp_path / "moved")
    moved, told = begun(tmp_path / "moved")
    assert (moved["id"], list(told)) == (first["id"], [])


def test_a_copy_has_its_id_from_its_first_start_on(tmp_path):
    """Also if that start fails, or the first start of the original has failed, and without the lock of the original."""
    with closing(RunFolder(tmp_path / "first")) as folder:
        folder.begin(SETTINGS)
        folder.enter("reading data")
        folder.fail("DataError: none")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    (tmp_path / "first/LOCK").unlink()
    with closing(RunFolder(tmp_path / "copy")) as folder:
        assert folder.copied_from == str(tmp_path / "first")
    ids = {json.loads((tmp_path / name / "run.json").read_text())["id"] for name in ("first", "copy")}
    assert len(ids) == 2
    with closing(RunFolder(tmp_path / "copy")) as folder:
        assert folder.copied_from is None
        folder.begin(SETTINGS)
        assert folder.record["id"] in ids


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_record_that_is_a_link_is_refused_before_training(tmp_path, name):
    """What a run adds could go anywhere: the start ends with a sentence, and the lock is free again."""
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    for _ in range(2):
        with pytest.raises(StateError, match=f"{name} is a symbolic link"):
            RunFolder(tmp_path / "run")
    assert (tmp_path / "victim").read_text() == "precious"


def test_no_run_begins_in_the_folder_of_a_study(tmp_path):
    """A run there would end the study, whose command refuses the folder of a run: nothing is written."""
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is the folder of a study: give the run another name"):
        RunFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


@pytest.mark.parametrize(("kind", "is_refused"), [("huggingface", True), ("files", False)])
def test_another_dataset_of_the_hub_is_another_run_in_a_mixture_too(tmp_path, kind, is_refused):
    """A source's path may change where it tells a place of files; the name of a dataset may not."""

    def settings(path):
        return {**SETTINGS, "data": {"kind": "mixture", "sources": {"one": {"kind": kind, "path": path}}}}

    with closing(RunFolder(tmp_path)) as folder:
        folder.begin(settings("some/dataset"))
        folder.write()
    expected = pytest.raises(ConfigurationError, match=r"data\.sources\.one\.path was") if is_refused else nullcontext()
    with closing(RunFolder(tmp_path)) as folder, expected:
        folder.begin(settings("another/dataset"))


@pytest.mark.parametrize(("reasoning", "is_refused"), [("keep", False), ("drop", True)])
def test_a_setting_that_is_newer_than_the_run_has_its_default_there(tmp_path, reasoning, is_refused):
    """A run whose record lacks a setting continues with its default, without a change, and with nothing else."""
    now = dump_settings(load_settings([], ["data.task=chat", "data.path=talks.jsonl"], {}).settings)
    earlier = deepcopy(now)
    del earlier["data"]["chat"]["reasoning"]
    with closing(RunFolder(tmp_path)) as folder:
        folder.begin(earlier)
        folder.write()
    now["data"]["chat"]["reasoning"] = reasoning
    expected = pytest.raises(ConfigurationError, match=r"data\.chat\.reasoning") if is_refused else nullcontext()
    with closing(RunFolder(tmp_path)) as folder, expected:
        folder.begin(now)
        assert folder.record["history"] == []


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({"model": SETTINGS["model"] | {"kind": "huggingface"}}, "model.kind"),
        ({"model": SETTINGS["model"] | {"gradient_checkpointing": "full"}}, "model.gradient_checkpointing"),
        ({"optimizer": {"learning_rate": 0.2}}, "optimizer.learning_rate"),
        ({"run": {"seed": 2}}, "run.seed"),
        ({"run": {"seed": 1, "budget": {"steps": 9}}}, "run.budget.steps"),
    ],
)
def test_ranks_that_would_take_other_steps_are_refused(theirs, named, tmp_path):
    """A rank that was given another model, rate, seed or length is told which setting it is."""
    with (
        closing(SharedRunFolder(tmp_path, TwoRanks({**SETTINGS, **theirs}))) as folder,
        pytest.raises(ConfigurationError, match=f"{named} of rank 1"),
    ):
        folder.begin(SETTINGS)


def test_a_run_of_a_newer_rule_is_refused(tmp_path):
    """What a later version has begun by a rule that is not known here cannot be continued with the same results."""
    begun(tmp_path)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | {"rules": {"parameter_groups": 99}})))
    with closing(SharedRunFolder(tmp_path, SingleProcessGroup())) as folder:
        folder.begin(SETTINGS)
        with pytest.raises(StateError, match="began with a newer holdfast"):
            folder.rules()


def test_a_run_continues_with_what_computes_the_same_and_with_nothing_else(tmp_path):
    """Built-in attention and loss may change, and recomputed activations; those of a package make another run."""
    begun(tmp_path)
    for changes in ({"attention": "eager"}, {"attention": "sdpa", "loss": "plain"}, {"gradient_checkpointing": "full"}):
        with closing(RunFolder(tmp_path)) as folder:
            folder.begin({**SETTINGS, "model": SETTINGS["model"] | changes})
            folder.write()
    for name in ("attention", "loss"):
        model = SETTINGS["model"] | {"gradient_checkpointing": "full", name: "of_a_package"}
        with closing(RunFolder(tmp_path)) as folder, pytest.raises(ConfigurationError, match=f"model.{name} was"):
            folder.begin({**SETTINGS, "model": model})


def test_no_bit_of_the_record_changes_what_commands_take_from_it(tmp_path):
    """Whichever bit of run.json is another, it is refused, or all that commands take from it is as it was."""
    begun(tmp_path / "run")
    path, right = tmp_path / "run/run.json", read_record(tmp_path / "run")
    sound, refused = path.read_bytes(), 0
    for bit in range(0, 8 * len(sound), 3):
        wrong = bytearray(sound)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        try:
            found = read_record(tmp_path / "run")
        except StateError:
            refused += 1
        else:
            assert right.items() <= found.items(), (bit, wrong)
    assert refused > len(sound)


@pytest.mark.parametrize("step", ["replace_file", "take_lock"])
def test_a_start_on_a_full_disk_is_told_what_to_do(step, tmp_path, monkeypatch):
    """Whether the folder or its record cannot be written, the reason and the remedy are in one sentence."""

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def begin():
        with closing(RunFolder(tmp_path / "run")) as folder:
            folder.begin(SETTINGS)
            folder.enter("reading data")

    with monkeypatch.context() as full:
        module = "holdfast.bootstrap.run_folder.record_file"
        full.setattr("pathlib.Path.mkdir" if step == "take_lock" else f"{module}.replace_file", fail)
        with pytest.raises(StateError, match="no space left on device: free some space there"):
            begin()
