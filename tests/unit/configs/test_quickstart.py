"""The defaults of a run on the Python standard library."""

from __future__ import annotations

import pytest

from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError


def chosen(*overrides):
    settings = load_settings([], overrides, {}).settings
    optimizer = settings.optimizer
    return settings.run.budget.steps, settings.data.sequence_length, optimizer.algorithm, optimizer.learning_rate


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), (150, 256, "muon", 1e-2)),
        (("run.name=mine",), (150, 256, "muon", 1e-2)),
        (("run.budget.steps=7", "data.sequence_length=64"), (7, 64, "muon", 1e-2)),
        (("optimizer.learning_rate=1e-3",), (150, 256, "muon", 1e-3)),
        (("optimizer.algorithm=adamw",), (150, 256, "adamw", 3e-3)),
        (("optimizer.sharding=fsdp2",), (150, 256, "adamw", 3e-3)),
        (("optimizer.sharding=auto", "optimizer.offload=false"), (150, 256, "muon", 1e-2)),
        (("optimizer.offload=true",), (150, 256, "adamw", 3e-3)),
        (("distributed.mesh.tensor=2",), (150, 256, "adamw", 3e-3)),
        (("model.path=gpt2",), (150, 256, "adamw", 3e-3)),
        (("model.lora.rank=4", "model.path=gpt2"), (150, 256, "adamw", 3e-3)),
        (("run.budget.minutes=2",), (None, 256, "muon", 1e-2)),
        (("data.epochs=2",), (None, 256, "muon", 1e-2)),
        (("data.epochs=2", "run.budget.steps=7"), (7, 256, "muon", 1e-2)),
        (("data.path=texts", "data.epochs=2"), (None, 512, "adamw", 3e-3)),
        (("data.path=texts", "data.epochs=2", "run.budget.steps=null"), (None, 512, "adamw", 3e-3)),
        (("data.path=texts",), (350, 512, "adamw", 3e-3)),
    ],
)
def test_the_defaults_fill_what_is_not_given(overrides, expected):
    """On the standard library they hold for each setting that nobody gave, and for no other data."""
    assert chosen(*overrides) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), (0.05, "similar_documents")),
        (("data.holdout=0.02",), (0.02, "similar_documents")),
        (("data.holdout_by=document",), (0.05, "document")),
        (("data.path=texts",), (0.02, "document")),
    ],
)
def test_the_default_run_holds_out_more_in_groups(overrides, expected):
    """The hold-out of the standard library is chosen as the other defaults are, and counts as not given."""
    data = load_settings([], overrides, {}).settings.data
    assert (data.holdout, data.holdout_by) == expected
    assert data.model_fields_set & {"holdout", "holdout_by"} == {
        override.partition("=")[0].removeprefix("data.") for override in overrides if "holdout" in override
    }


def test_the_record_of_an_earlier_version_keeps_its_hold_out():
    """Such a record has no ``holdout_by``; what it is restored for holds out each document by itself."""
    recorded = dump_settings(load_settings([], ["data.holdout=0.02"], {}).settings)
    assert restore_settings(recorded).data.holdout_by == "similar_documents"
    del recorded["data"]["holdout_by"]
    assert (restore_settings(recorded).data.holdout, restore_settings(recorded).data.holdout_by) == (0.02, "document")


def test_a_profile_of_steps_after_its_end_is_refused():
    """Steps of ``profile`` are compared with those of the quickstart, not with the steps on other data."""
    load_settings([], ["profile.steps=140:150"], {})
    load_settings([], ["profile.steps=200:210", "data.path=texts"], {})
    load_settings([], ["profile.steps=900:910", "data.path=texts", "data.epochs=2"], {})
    with pytest.raises(ConfigurationError, match=r"ends the run at step 150: choose earlier steps"):
        load_settings([], ["profile.steps=200:210"], {})


def test_hosts_get_the_defaults_too():
    """Settings made in Python have the defaults of the command line."""
    assert TrainSettings() == load_settings([], [], {}).settings
