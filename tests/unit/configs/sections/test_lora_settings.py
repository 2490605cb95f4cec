"""The settings of adapters."""

from __future__ import annotations

import json

import pytest

from holdfast.bootstrap.stages.build.model import add_adapters
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError


def settings(*overrides):
    return load_settings([], overrides, {}).settings


@pytest.mark.parametrize("kind", ["huggingface", "decoder"])
def test_one_value_asks_for_adapters(kind):
    """There are no adapters unless a value of model.lora is given; the others have defaults then."""
    assert settings(f"model.kind={kind}").model.lora is None
    lora = settings(f"model.kind={kind}", "model.lora.rank=8").model.lora
    assert (lora.rank, lora.alpha, lora.dropout, lora.target_modules, lora.quantize) == (8, 32.0, 0.0, "auto", "none")


def test_a_decoder_on_a_folder_takes_adapters():
    """model.lora is no part of a decoder's shape, which model.path gives."""
    assert settings("model.kind=decoder", "model.path=./base", "model.lora.rank=8").model.lora.rank == 8


def test_targets_are_a_list():
    """Names of layers come as a list, which a run's record keeps; an empty one would adapt nothing and is refused."""
    chosen = settings("model.lora.target_modules=[q_proj, v_proj]")
    assert chosen.model.lora.target_modules == ("q_proj", "v_proj")
    assert restore_settings(json.loads(json.dumps(dump_settings(chosen)))) == chosen
    with pytest.raises(ConfigurationError, match=r"model\.lora\.target_modules"):
        settings("model.lora.target_modules=[]")


@pytest.mark.parametrize("override", ["rank=0", "alpha=0", "dropout=1.0", "quantize=8bit", "target_modules=q_proj"])
def test_impossible_values_are_refused(override):
    """A rank or scale of nothing, all inputs dropped, bits that are not built and a bare name are refused by name."""
    with pytest.raises(ConfigurationError, match=rf"model\.lora\.{override.partition('=')[0]}"):
        settings(f"model.lora.{override}")


class Network:
    """A model that could get adapters."""

    network = object()


@pytest.mark.parametrize(
    ("model", "overrides", "message"),
    [
        (Network(), ["optimizer.kind=deepspeed"], "does not work with optimizer.kind=deepspeed"),
        (Network(), ["model.lora.quantize=4bit", "optimizer.sharding=fsdp2"], "fsdp2 cannot shard"),
        (object(), [], "cannot have adapters"),
    ],
)
def test_adapters_that_could_not_train_are_refused(model, overrides, message):
    """DeepSpeed, shards of 4 bits and models without a network are said before anything is built on."""
    with pytest.raises(ConfigurationError, match=message):
        add_adapters(model, settings("model.lora.rank=4", *overrides))
