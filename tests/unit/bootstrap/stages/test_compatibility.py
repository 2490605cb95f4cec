"""Runs that an earlier version began continue as they began."""

from unittest.mock import Mock

import pytest

from holdfast.bootstrap.stages.choose.former_settings import check_description, with_former_settings
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError

PAIRS = ("data.path=pairs.jsonl", "data.task=preference")
SETTING = "optimizer.dpo.disable_dropout"


def loaded(*overrides):
    return load_settings([], overrides, {}).settings


def begun(*overrides, by_earlier_version=False):
    """Return the recorded settings of a run."""
    record = dump_settings(loaded(*PAIRS, *overrides))
    if by_earlier_version:
        del record["optimizer"]["dpo"]["disable_dropout"]
    return record


@pytest.mark.parametrize(
    ("record", "given", "is_off"),
    [
        (None, (), True),
        (begun(), (), True),
        (begun(by_earlier_version=True), (), False),
        (begun(f"{SETTING}=false"), (), False),
        (begun(by_earlier_version=True), (f"{SETTING}=true",), True),
    ],
)
def test_a_run_on_preferences_keeps_the_dropout_that_it_began_with(record, given, is_off):
    """A new run switches it off; one of an earlier version keeps it on, at each start, unless it is set now."""
    settings = loaded(*PAIRS, *given)
    again = with_former_settings(settings, record)
    assert again.optimizer.dpo.disable_dropout is is_off
    assert with_former_settings(settings, dump_settings(again)).optimizer.dpo.disable_dropout is is_off


def test_other_runs_stay_as_they_are():
    """The optimizer of a run that learns no preferences keeps its settings."""
    settings = loaded("data.path=texts")
    assert with_former_settings(settings, dump_settings(settings)).optimizer == settings.optimizer


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), (0.02, "document")),
        (("data.holdout=0.05",), (0.05, "document")),
        (("data.holdout_by=similar_documents",), (0.02, "similar_documents")),
    ],
)
def test_a_run_on_the_python_library_keeps_what_it_held_out(given, expected):
    """One of an earlier version holds out fewer documents, each by itself, unless something else is set now."""
    record = dump_settings(loaded("data.holdout=0.02"))
    del record["data"]["holdout_by"]
    again = with_former_settings(loaded(*given), record)
    assert (again.data.holdout, again.data.holdout_by) == expected
    assert with_former_settings(loaded(), dump_settings(again)).data == again.data
    new = loaded()
    assert with_former_settings(new, dump_settings(new)).data == with_former_settings(new, None).data == new.data


@pytest.mark.parametrize("name", ["model.path", "tokenizer.path"])
def test_the_folder_of_a_run_is_no_model(name, tmp_path):
    """The message names the newest checkpoint, which is a model; the factory is not asked for a folder of a run."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    for step in (5, 10):
        checkpoint = run / f"checkpoints/checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        for file in ("COMMIT", "config.json", "run.json"):
            (checkpoint / file).touch()
    path = {"model.path": str(run / "checkpoints/checkpoint-10"), name: str(run)}
    settings = loaded(*(f"{key}={value}" for key, value in path.items()))
    with pytest.raises(ConfigurationError, match=f"^{name}=.* name its newest checkpoint, .*checkpoint-10, or another"):
        check_description(Mock(), settings, is_new=False)
    described = loaded(f"{name}={run}/checkpoints/checkpoint-10", f"model.path={run}/checkpoints/checkpoint-10")
    check_description(Mock(), described, is_new=False)
