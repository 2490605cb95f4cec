from types import SimpleNamespace

import pytest
import torch
from torch import nn

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.modeling.activation_checkpointing import checkpoint_layers
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import Training
from holdfast.domain.training.memory_fit import CheckpointBudget
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, packed_batch

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS = {
    "llama": {"model_type": "llama", "num_hidden_layers": 4, "attention_dropout": 0.1, **SIZES},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4},  # with dropout
    "nemotron_h": {
        "model_type": "nemotron_h",
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 16,
        **SIZES,
    },
}


def build(config, policy):
    kind = HuggingfaceModelFactory if "model_type" in config else DecoderModelFactory
    factory = kind(config=config, gradient_checkpointing=policy)
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)


def inputs():
    batch = packed_batch()
    return {name: torch.from_numpy(getattr(batch, name)) for name in ("input_ids", "position_ids", "loss_mask")}


def loss_and_gradients(model):
    torch.manual_seed(3)  # of the dropout
    loss = model.train()(**inputs())
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def kept_bytes(model):
    """Return the bytes that the forward keeps for the backward, weights left out."""
    kept = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.train()(**inputs())
    assert loss.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("policy", ["full", "every:2", "every:3"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_loss_and_gradients_are_those_without(config, policy):
    """Layers that are computed again give the same loss and the same gradients, dropout included."""
    expected = loss_and_gradients(build(config, "none"))
    torch.testing.assert_close(loss_and_gradients(build(config, policy)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_less_is_kept(config):
    """The more layers are computed again, the less the forward keeps; every:1 is full."""
    none, some, full, first = (kept_bytes(build(config, policy)) for policy in ("none", "every:2", "full", "every:1"))
    assert full < 0.6 * none
    assert full < some < none
    assert first == full


@pytest.mark.parametrize("policy", ["every:0", "every:", "every:-1", "all", ""])
def test_another_policy_is_refused(policy):
    """A policy that there is not is refused with those that there are."""
    with pytest.raises(ConfigurationError, match="every:N"):
        build(CONFIGS["llama"], policy)


def test_a_network_without_such_layers_is_refused():
    """A network whose layers cannot be computed again is refused, and left alone if none are to be."""
    network = nn.Sequential(nn.Linear(2, 2))
    checkpoint_layers(network, "none")
    with pytest.raises(ConfigurationError, match="Sequential"):
        checkpoint_layers(network, "full")


def test_a_network_of_ours_is_told_the_number():
    """A network with the attribute for it gets the number of layers, 0 for none."""
    network = SimpleNamespace(gradient_checkpointing_every=7)
    for policy, every in (("full", 1), ("every:3", 3), ("none", 0)):
        checkpoint_layers(network, policy)
        assert network.gradient_checkpointing_every == every


DEEP = {
    "llama": {"model_type": "llama", "num_hidden_layers": 6, **SIZES},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 6,
        "n_head": 4,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "decoder": {"num_hidden_layers": 6, **SIZES},
}
ROWS, LENGTH = 6, 16  # of ``packed_batch``
LAST_NORM = 4 * 3 * ROWS * LENGTH * 32  # and what lies around the layers


def within(budget):
    return CheckpointBudget(budget, Training(ROWS, LENGTH, is_masked=True))


@pytest.mark.parametrize("config", DEEP.values(), ids=DEEP)
def test_a_budget_is_kept_with_few_layers_computed_again(config):
    """What is measured stays within each budget, and one policy that computes fewer layers again would not."""
    policies = ("none", "every:6", "every:3", "every:2", "full")
    measured = {policy: kept_bytes(build(config, policy)) for policy in policies}
    layer = (measured["none"] - measured["every:6"]) * 1.05  # one runs again at a time
    chosen = []
    for share in (1.2, 0.9, 0.75, 0.6, 0.35):
        budget = int(measured["none"] * share)
        model = build(config, within(budget))
        policy = model.notes[-1].split("gradient checkpointing is ")[1].split(",")[0]
        again = 0 if policy == "none" else layer
        assert kept_bytes(model) == measured[policy]
        assert measured[policy] - LAST_NORM + (layer if policy != "none" else 0) <= 1.1 * budget
        for fewer in policies[: policies.index(policy)]:
            assert measured[fewer] + again > 0.95 * budget, (policy, fewer)
        chosen.append(policy)
    assert chosen[0] == "none"
    assert chosen[-1] == "full"
    assert len(set(chosen)) >= 3


def test_a_budget_that_nothing_keeps_is_refused():
    """The refusal names the smallest budget that would do, and that one does."""
    with pytest.raises(ConfigurationError, match=r"6 rows of 16 tokens.*set budget:") as refused:
        build(DEEP["llama"], within(1000))
    least = int(str(refused.value).split("set budget:")[1].split("MiB")[0])
    build(DEEP["llama"], within(least << 20))


@pytest.mark.parametrize(
    "config",
    [
        CONFIGS["nemotron_h"],
        {"model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 2, **SIZES},
    ],
    ids=["nemotron_h", "mixtral"],
)
def test_a_model_of_uneven_or_expert_layers_has_no_budget(config):
    """A model that the formula does not describe is refused with what to set in its place."""
    with pytest.raises(ConfigurationError, match="every:N"):
        build(config, within(10**9))


def test_eager_attention_has_no_budget():
    """Its weights grow with the square of the length, which the formula knows nothing of."""
    factory = HuggingfaceModelFactory(config=DEEP["llama"], attention="eager", gradient_checkpointing=within(10**9))
    with pytest.raises(ConfigurationError, match="eager attention"):
        factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)
