"""A model is asked on a machine that could not train it."""

import pytest

from holdfast.bootstrap.operations.trained_model import _on_any_device, _on_checkpoint
from holdfast.configs.settings import TrainSettings


def test_a_model_trained_in_8_bits_is_asked_in_bf16():
    """What the hardware of training had is not wanted for evaluation and text."""
    settings = TrainSettings(model={"kind": "decoder"}, optimizer={"kind": "accelerate", "precision": "fp8"})
    assert _on_any_device(settings, "cpu").optimizer.precision == "bf16"


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_budget_of_training_binds_nobody_who_asks(lora, tmp_path):
    """A model with and without adapters is opened without the memory that training was bound to."""
    model = {"kind": "decoder", "gradient_checkpointing": "budget:1MiB", "lora": lora}
    settings = TrainSettings(model=model, optimizer={"kind": "accelerate"})
    assert _on_checkpoint(settings, tmp_path).model.gradient_checkpointing == "none"
