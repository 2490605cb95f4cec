"""The names that runs get by themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast.application.training.loop import does_not_fit
from holdfast.configs import run_names
from holdfast.configs.rendering import dump_settings
from holdfast.configs.run_names import is_identity
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import DataError, NonFiniteGradients, OutOfMemory
from holdfast.domain.fault_tolerance.remedies import remedies_for

DATA = ("data.kind=files", "data.path=texts")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Return the current folder, which holds two folders of texts."""
    home = tmp_path / "home"
    for name in ("texts", "others"):
        (home / name).mkdir(parents=True)
    monkeypatch.chdir(home)
    return home


def settings_of(*overrides):
    return load_settings([], overrides, {}).settings


def name_of(*overrides):
    return settings_of(*overrides).run.name


def test_the_quickstart_is_default():
    """A run without settings is called default, as is one that only learns or lasts otherwise."""
    assert name_of() == name_of("optimizer.learning_rate=1e-4", "run.budget.steps=7", "model.compile=none") == "default"


def test_a_name_that_is_given_is_kept():
    """Whatever the run is, run.name names it, and run.dir places it."""
    assert name_of("run.name=default", *DATA) == "default"
    assert settings_of("run.dir=here", *DATA).run.directory == Path("here")


@pytest.mark.parametrize(
    "change",
    [
        "data.path=others",
        "data.sequence_length=64",
        "data.holdout=0.5",
        "tokenizer.vocabulary_size=999",
        "model.config.hidden_size=32",
        "model.kind=decoder",
        "run.seed=1",
        "optimizer.algorithm=lion",
        "model.attention=of_a_package",
        "model.loss=of_a_package",
    ],
)
def test_what_a_resume_may_not_change_names_another_run(change):
    """Each setting which a resume with another value refuses gives the run another folder."""
    assert name_of(*DATA, change) != name_of(*DATA)


@pytest.mark.parametrize(
    "change",
    [
        "run.budget.tokens=1e9",
        "optimizer.learning_rate=1",
        "optimizer.batch_size=8",
        "data.workers=1",
        "data.cache.budget=1000000000",
        "state_store.keep=9",
        "tokenizer.backend=huggingface",
        "monitors=[jsonl]",
        "model.gradient_checkpointing=full",
        "model.attention=eager",
        "model.loss=plain",
    ],
)
def test_what_a_resume_may_change_continues_the_run(change):
    """The same command with a longer budget, another rate or other care finds the run that it began."""
    assert name_of(*DATA, change) == name_of(*DATA)


def test_a_run_keeps_the_name_that_it_got_by_more_settings(home):
    """A run whose folder was named by a setting that is free by now continues there, and no other run does."""
    chosen = (*DATA, "model.gradient_checkpointing=full", "model.loss=plain")
    former = "texts-8e243484"
    assert name_of(*chosen) == name_of(*DATA) != former
    (home / "runs" / former).mkdir(parents=True)
    assert name_of(*chosen) == former
    assert name_of(*DATA) != former


def test_what_a_message_recommends_continues_the_run():
    """No advice names a setting that a run which has begun may not change, unless it says that it is another run."""
    advice = [*remedies_for(OutOfMemory()), *str(does_not_fit(OutOfMemory("m"), 1)).split(", or ")]
    advice += [*remedies_for(MemoryError()), *remedies_for(NonFiniteGradients()), *remedies_for(DataError())]
    found = {}
    for words in advice:
        if "other run" not in words and "different run" not in words:
            found |= dict(re.findall(r"\b((?:data|tokenizer|model|optimizer|run)\.[a-z_.]*[a-z])(?:=(\w+))?", words))
    assert found.keys() >= {"optimizer.micro_batch", "model.gradient_checkpointing", "data.prefetch"}
    assert [name for name, value in found.items() if is_identity(name, "auto", value)] == []


@pytest.mark.parametrize("spelling", ["./texts", "texts/", "others/../texts", "{home}/texts", "[texts]"])
def test_the_spelling_of_a_path_does_not_matter(home, spelling):
    """The same place is the same run, however it is written."""
    assert name_of("data.kind=files", f"data.path={spelling.format(home=home)}") == name_of(*DATA)


def test_a_project_that_was_moved_keeps_its_names(home, monkeypatch):
    """What lies below the current folder is named as seen from there, so the run is found after a move."""
    before = name_of(*DATA)
    moved = home.with_name("moved")
    home.rename(moved)
    monkeypatch.chdir(moved)
    assert name_of(*DATA) == before


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (DATA, "texts"),
        (("data.kind=files", "data.path=texts/**/*.jsonl.gz"), "texts"),
        (("data.kind=files", "data.path=s3://bucket/some dir/wörter.v2.jsonl.gz"), "w-rter"),
        (("data.kind=files", "data.path=[texts,others]"), "texts"),
        (("data.kind=huggingface", "data.path=Salesforce/wikitext"), "wikitext"),
        (("model.path=openai/gpt2",), "gpt2"),
        (("model.config.hidden_size=32",), "llama"),
        (("model.kind=decoder",), "decoder"),
    ],
)
def test_a_name_tells_what_the_run_is_of(overrides, word):
    """The data, or the model where the data are the default, and eight digits of the hash."""
    name, _, digest = name_of(*overrides).rpartition("-")
    assert (name, len(digest)) == (word, 8)


def test_a_run_that_was_begun_as_default_continues_there(home):
    """A folder from before names came by themselves is the run's as long as it is of these very settings."""
    earlier = settings_of("run.name=default", *DATA)
    record = home / "runs/default/run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"settings": dump_settings(earlier)}))
    assert name_of(*DATA) == name_of(*DATA, "run.budget.steps=7") == "default"
    assert name_of("data.kind=files", "data.path=others") != "default"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"settings": {"run": {"name": 7}}}'])
def test_a_folder_called_default_that_cannot_be_read_is_left_alone(home, content):
    """What stands in runs/default and is no record of such a run changes no name."""
    record = home / "runs/default/run.json"
    record.parent.mkdir(parents=True)
    name = name_of(*DATA)
    record.write_text(content)
    assert name_of(*DATA) == name != "default"


def test_a_secret_in_a_url_is_no_part_of_a_name():
    """A run is found again with a new password for the same data."""
    first, second = (name_of("data.kind=files", f"data.path=https://me:{word}@host/a.txt") for word in ("old", "new"))
    assert first == second


def test_a_run_with_an_archive_keeps_the_name_under_which_its_copies_lie():
    """Copies of a run are found by its name on an empty disk, so no name comes by itself there."""
    assert name_of(*DATA, "state_store.archive.url=./archive") == "default"


def test_people_read_the_name_of_the_folder_unless_a_name_is_given():
    """Trackers get ``run.name`` if it is set, and otherwise the name of the folder that was chosen."""
    overrides = (["run.dir=kept/march"], ["run.dir=kept/march", "run.name=april"], ["run.name=april"], ["run.dir=/"])
    assert [settings_of(*each).run.shown_name for each in overrides] == ["march", "april", "april", "default"]


def test_a_run_of_an_earlier_version_continues_under_its_name(home):
    """A record that lacks the settings of tokenizers which came later is that of the same run."""
    earlier = dump_settings(settings_of("run.name=default", *DATA))
    del earlier["tokenizer"]["add_bos"], earlier["tokenizer"]["loader"]
    record = home / "runs/default/run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"settings": earlier}))
    assert name_of(*DATA) == "default"
    assert name_of(*DATA, "tokenizer.add_bos=true") != "default"


def test_a_run_that_an_earlier_version_named_is_not_taken_for_another(home):
    """If the folders of both names exist, the command continues the run that has its settings in its name."""
    chosen = [*DATA, "model.attention=sdpa"]
    now = name_of(*chosen)
    former = run_names._name_of(settings_of(*chosen), run_names._ONCE_IN_NAMES)
    assert now == name_of(*DATA) != former
    for name in (now, former):
        (home / "runs" / name).mkdir(parents=True)
    assert name_of(*chosen) == former
    assert name_of(*DATA) == now


def test_strictness_is_no_part_of_a_run():
    """``data.strict`` only decides whether the run ends, so it changes neither the name nor a begun run."""
    assert name_of(*DATA, "data.strict=true") == name_of(*DATA)
    assert not run_names.is_identity("data.strict", False, True)


def test_runs_of_the_library_with_the_former_hold_out_are_found(home):
    """Under the name that they had, be it from settings that are defaults now or from those that were it."""
    (home / "runs").mkdir()
    former = "llama-6ee3d928"  # of data.holdout=0.05 alone, when the default was 0.02
    assert name_of("data.holdout=0.05") == "default"
    (home / "runs" / former).mkdir()
    assert name_of("data.holdout=0.05") == former
    assert name_of() == "default"
    record = home / "runs/default/run.json"
    record.parent.mkdir()
    earlier = dump_settings(settings_of("run.name=default", "data.holdout=0.02"))
    record.write_text(json.dumps({"settings": earlier}))
    assert name_of("data.holdout=0.02") == "default"  # both hold out by groups
    del earlier["data"]["holdout_by"]
    record.write_text(json.dumps({"settings": earlier}))
    assert name_of("data.holdout=0.02") == name_of() == "default"
    assert name_of("data.holdout=0.3") != "default"
