"""Settings under former names, and under those of other training configurations."""

import json
from pathlib import Path

import pytest

from holdfast.configs.aliases import ALIASES, RENAMED, current_name, with_current_names
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_catalog import settings_by_name
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError

LLAMAHOME = Path(__file__).parents[2] / "llamahome.yaml"


def test_its_configuration_keeps_its_meaning():
    """The block of its documentation sets what it says, and each value tells where it came from."""
    found = load_settings([LLAMAHOME], [], {})
    settings = found.settings
    assert settings.optimizer.micro_batch == "auto"
    assert (settings.data.prefetch, settings.data.workers) == (2, None)
    resources = settings.resources
    assert (resources.max_memory, resources.gpu_memory_fraction, resources.io_queue_size) == (0.8, 0.7, 1000)
    model = settings.model
    assert (settings.optimizer.precision, model.gradient_checkpointing, model.compile) == (
        "bf16",
        "full",
        "reduce-overhead",
    )
    assert found.origins["data.prefetch"] == f"{LLAMAHOME}, as training.pipeline.prefetch"


VALUES = {
    "pipeline.max_memory": (0.5, 0.5),
    "optimization.mixed_precision": ("true", "bf16"),
    "optimization.gradient_checkpointing": ("true", "full"),
    "optimization.compile_mode": ("default", "default"),
}


@pytest.mark.parametrize("before", ["", "training."])
@pytest.mark.parametrize("alias", [alias for alias in ALIASES if alias[0] != "data"])
def test_an_alias_is_the_setting_in_every_layer(alias, before):
    """An alias on the command line or in the environment wins over the setting in a weaker layer."""
    name, (section, key) = ".".join(alias), ALIASES[alias]
    value, meant = VALUES.get(name, (4, 4))
    weaker = {
        f"HOLDFAST_{section}__{key}".upper(): "none" if section == "model" else "fp16" if key == "precision" else "1"
    }
    found = load_settings([], [f"{before}{name}={value}"], weaker)
    assert getattr(getattr(found.settings, section), key) == meant
    environment = {f"HOLDFAST_{name.upper().replace('.', '__')}": str(value)}
    assert load_settings([], [], environment).settings == found.settings


@pytest.mark.parametrize(
    ("override", "section", "key", "meant"),
    [
        ("training.optimization.mixed_precision=false", "optimizer", "precision", "fp32"),
        ("training.optimization.gradient_checkpointing=false", "model", "gradient_checkpointing", "none"),
        ("training.optimization.compile_mode=null", "model", "compile", "none"),
    ],
)
def test_what_it_turns_off_is_off(override, section, key, meant):
    """False and null mean the settings that do without."""
    assert getattr(getattr(load_settings([], [override], {}).settings, section), key) == meant


VOROX = """\
data:
  settings:
    prefetch_size: 1000
    cache_dsn: "postgresql://user:pass@host:port/db"
    shuffle_buffer: true
  source:
    name: "dolma"
    urls:
      - "s3://bucket/train_part1.txt"
      - "s3://bucket/train_part2.txt"
"""


def test_the_configuration_of_vorox_is_understood(tmp_path):
    """Each of its names is another name of a setting, and its shuffling is done anyway."""
    path = tmp_path / "vorox.yaml"
    path.write_text(VOROX)
    found = load_settings([path], [], {}).settings
    assert (found.data.kind, found.data.label, found.data.prefetch_samples) == ("files", "dolma", 1000)
    assert found.data.path == ("s3://bucket/train_part1.txt", "s3://bucket/train_part2.txt")
    assert (found.ledger.kind, found.ledger.dsn) == ("postgres", "postgresql://user:pass@host:port/db")
    with pytest.raises(ConfigurationError, match=r"shuffle_buffer .* can only be true"):
        load_settings([path], ["data.settings.shuffle_buffer=false"], {})


def test_a_name_without_data_is_refused():
    """A name alone would train on the default data."""
    with pytest.raises(ConfigurationError, match="'dolma', which names no data by itself"):
        load_settings([], ["data.source.name=dolma"], {})


def test_one_setting_under_two_names_is_refused():
    """Within a layer nobody can tell which of the two names counts."""
    with pytest.raises(ConfigurationError, match=r"^pipeline\.prefetch \(command line\) is another name of data"):
        load_settings([], ["data.prefetch=1", "pipeline.prefetch=2"], {})


@pytest.mark.parametrize(
    "name", ["training.pipeline.depth", "pipeline.depth", "training.depth", "pipeline", "optimization.depth"]
)
def test_other_names_of_that_document_stay_unknown(name):
    """What has no counterpart here is refused under the name that was written."""
    with pytest.raises(ConfigurationError, match=name.split(".")[0]):
        load_settings([], [f"{name}=2"], {})


RENAMED_FILE = """\
data:
  memory: 1GiB
recovery:
  health: {z: 7.5, rise: 0.25, patience: 4}
resources:
  manage: false
state_store:
  archive: {url: /tmp/a, keep_read_hours: 2}
"""


def test_every_former_name_is_read_with_one_line_of_notice(tmp_path):
    """A file with all former names sets what their new names set, and each is reported once however often it stands."""
    file = tmp_path / "old.yaml"
    file.write_text(RENAMED_FILE)
    found = load_settings([file], ["resources.manage=false"], {"HOLDFAST_DATA__MEMORY": "1GiB"})
    health = found.settings.recovery.health
    assert (health.spike_zscore, health.spike_min_rise, health.spike_steps) == (7.5, 0.25, 4)
    assert (found.settings.resources.auto_tune, found.settings.data.stream_buffer_bytes) == (False, 1 << 30)
    assert found.settings.state_store.archive.restored_copy_hours == 2
    assert sorted(found.notes) == [
        f"{'.'.join(old)} is now called {'.'.join(new)}; the old name still works"
        for old, new in sorted(RENAMED.items())
    ]
    assert found.origins["resources.auto_tune"] == "command line, as resources.manage"
    assert {current_name(".".join(old)) for old in RENAMED} <= settings_by_name().keys()


def test_a_record_under_former_names_is_read():
    """Settings in a ``run.json`` of an earlier version are those of today, and a section that is null stays so."""
    settings = load_settings([], ["resources.auto_tune=false", "recovery.health.spike_steps=5"], {}).settings
    plain = dump_settings(settings)
    former = json.loads(json.dumps(plain))
    for old, new in RENAMED.items():
        section = former
        for key in old[:-1]:
            section = section[key] if section else None
        if section:
            section[old[-1]] = section.pop(new[-1])
    assert former != plain
    assert with_current_names(former) == plain
    assert restore_settings(former) == settings


def test_a_renamed_setting_keeps_the_name_of_its_run(tmp_path, monkeypatch):
    """The folder of a run whose settings name it is the one that an earlier version gave it."""
    monkeypatch.chdir(tmp_path)
    assert load_settings([], ["data.stream_buffer_bytes=1000000"], {}).settings.run.name == "llama-9e30764a"
