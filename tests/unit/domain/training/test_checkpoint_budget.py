"""Which layers are computed again within a budget."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.bootstrap.adapter_choice.torch_adapters import checkpointing
from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.configs.sections.model import PluginModelSettings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import size_in_bytes
from holdfast.domain.training.memory_estimate import LayerShape, ModelShape, Training, estimate_memory
from holdfast.domain.training.memory_fit import CheckpointBudget, choose_checkpointing

shapes = st.builds(
    lambda layers, hidden: ModelShape(10**9, layers, LayerShape(hidden, 4 * hidden, hidden, hidden // 4), 1000),
    st.integers(1, 100),
    st.integers(1, 512).map(lambda number: 64 * number),
)
trainings = st.builds(
    Training, rows=st.integers(1, 64), length=st.integers(8, 4096), precision=st.sampled_from(["fp32", "bf16"])
)


def activations(shape, training, every):
    return estimate_memory(shape, replace(training, checkpoint_every=every)).activations


@given(shapes, trainings, st.integers(1, 10**13))
def test_no_policy_with_fewer_layers_would_keep_the_budget(shape, training, size):
    """The choice keeps the budget, each policy with fewer layers does not; a refusal names a budget that is kept."""
    try:
        chosen = choose_checkpointing(shape, CheckpointBudget(size, training))
    except ConfigurationError as error:
        assert all(activations(shape, training, every) > size for every in range(shape.num_layers + 1))
        least = size_in_bytes(str(error).split("set budget:")[1].split(" ")[0])
        choose_checkpointing(shape, CheckpointBudget(least, training))
        return
    assert chosen.activations == activations(shape, training, chosen.every) <= size
    assert chosen.all_kept == activations(shape, training, 0)
    again = -(-shape.num_layers // chosen.every) if chosen.every else 0
    for every in range(1, shape.num_layers + 1):
        if -(-shape.num_layers // every) < again:
            assert activations(shape, training, every) > size
    if again:
        assert chosen.all_kept > size


@pytest.mark.parametrize(
    ("text", "size"), [("6GiB", 6 << 30), ("1.5GB", 1_500_000_000), ("512MiB", 512 << 20), ("2TB", 2 * 10**12)]
)
def test_a_size_is_a_number_and_a_unit(text, size):
    """Units of 1000 and of 1024 are told apart."""
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "0GiB", "6XB", "6B", "nanGB", "1e19"])
def test_what_is_no_size_is_refused(text):
    """A size without a number, of nothing, with another unit or beyond 63 bits is refused, by the settings too."""
    with pytest.raises(ValueError, match="is not a size"):
        size_in_bytes(text)
    with pytest.raises(ValidationError, match="is not a size"):
        DecoderModelSettings(gradient_checkpointing=f"budget:{text}")


def settings_of(**model):
    return TrainSettings(model={"kind": "decoder", **model}, optimizer={"kind": "accelerate", "batch_size": 8})


def test_a_budget_is_for_the_rows_of_one_process(monkeypatch):
    """The rows are those of a micro-batch, or a process's share of the batch; other policies go through as they are."""
    settings = settings_of(gradient_checkpointing="budget:2GiB")
    budget = checkpointing(settings, "fp16")
    assert budget.max_bytes == 2 << 30
    assert (budget.training.rows, budget.training.length) == (8, settings.data.sequence_length)
    assert (budget.training.precision, budget.training.is_masked) == ("bf16", True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert checkpointing(settings, "fp32").training.rows == 2
    assert checkpointing(settings_of(gradient_checkpointing="every:2"), "fp32") == "every:2"
    assert checkpointing(SimpleNamespace(model=PluginModelSettings(kind="another")), "fp32") == "none"
