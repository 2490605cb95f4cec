"""Settings under the names of LlamaHome's training configuration."""

import pytest

from configs.aliases import ALIASES
from configs.layers import load_settings
from domain.errors import ConfigurationError

LLAMAHOME = """\
training:
  pipeline:
    batch_size: "auto"
    prefetch: 2
    max_memory: 0.8
  resources:
    gpu_memory_fraction: 0.7
    cpu_workers: "auto"
    io_queue_size: 1000
"""


def test_its_configuration_keeps_its_meaning(tmp_path):
    """The block of its documentation sets what it says, and each value tells where it came from."""
    path = tmp_path / "llamahome.yaml"
    path.write_text(LLAMAHOME)
    found = load_settings([path], [], {})
    settings = found.settings
    assert settings.optimizer.micro_batch == "auto"
    assert (settings.data.prefetch, settings.data.workers) == (2, None)
    resources = settings.resources
    assert (resources.max_memory, resources.gpu_memory_fraction, resources.io_queue_size) == (0.8, 0.7, 1000)
    assert found.origins["data.prefetch"] == f"{path}, as training.pipeline.prefetch"


@pytest.mark.parametrize("before", ["", "training."])
@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_the_setting_in_every_layer(alias, before):
    """An alias on the command line or in the environment wins over the setting in a weaker layer."""
    name, target = ".".join(alias), ".".join(ALIASES[alias])
    value = 0.5 if name == "pipeline.max_memory" else 4
    weaker = {f"HOLDFAST_{target.upper().replace('.', '__')}": "1"}
    found = load_settings([], [f"{before}{name}={value}"], weaker)
    section, key = ALIASES[alias]
    assert getattr(getattr(found.settings, section), key) == value
    environment = {f"HOLDFAST_{name.upper().replace('.', '__')}": str(value)}
    assert load_settings([], [], environment).settings == found.settings


def test_one_setting_under_two_names_is_refused():
    """Within a layer nobody can tell which of the two names counts."""
    with pytest.raises(ConfigurationError, match=r"^pipeline\.prefetch \(command line\) is another name of data"):
        load_settings([], ["data.prefetch=1", "pipeline.prefetch=2"], {})


@pytest.mark.parametrize("name", ["training.pipeline.depth", "pipeline.depth", "training.depth", "pipeline"])
def test_other_names_of_that_document_stay_unknown(name):
    """What has no counterpart here is refused under the name that was written."""
    with pytest.raises(ConfigurationError, match=name.split(".")[0]):
        load_settings([], [f"{name}=2"], {})
