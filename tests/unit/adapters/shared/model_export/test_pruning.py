from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from holdfast.adapters.shared.model_export.pruning import prune_linear_layers, pruned_share
from holdfast.adapters.shared.modeling.network_layers import linear_layers
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.export_format import Sparsity


def llama(inner=24):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


def gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2))


def matrices(network):
    """Return the linear layers as matrices of shape (outputs, inputs)."""
    is_conv = isinstance(network, GPT2LMHeadModel)
    return {name: (each.weight.T if is_conv else each.weight).detach() for name, each in linear_layers(network).items()}


@pytest.mark.parametrize("build", [llama, gpt2])
def test_two_of_four_inputs_are_zero(build):
    """2:4 keeps the two largest weights of each four successive inputs as they were, and sets the others to zero."""
    before, network = matrices(build()), build()
    prune_linear_layers(network, Sparsity.parse("2:4"))
    for name, after in matrices(network).items():
        groups, kept = before[name].reshape(-1, 4), after.reshape(-1, 4)
        largest = groups.abs().topk(2, dim=1).indices
        expected = torch.zeros_like(groups).scatter(1, largest, groups.gather(1, largest))
        assert torch.equal(kept, expected), name
    assert pruned_share(network).num_zeros * 2 == pruned_share(network).num_weights


@pytest.mark.parametrize("build", [llama, gpt2])
def test_a_share_of_each_layer_is_zero(build):
    """A share prunes the smallest weights of each layer; embeddings, norms and the head keep all of theirs."""
    before, network = build(), build()
    prune_linear_layers(network, Sparsity.parse("0.25"))
    for name, after in matrices(network).items():
        weights = matrices(before)[name]
        limit = weights.abs().flatten().sort().values[round(0.25 * weights.numel())]
        assert torch.equal(after, torch.where(weights.abs() < limit, 0.0, weights)), name
    pruned = {f"{name}.weight" for name in linear_layers(network)}
    for name, parameter in network.named_parameters():
        assert name in pruned or torch.equal(parameter, before.get_parameter(name)), name


def test_groups_that_do_not_fit_are_refused():
    """A layer whose inputs are no multiple of four is not pruned in fours, and the message names it."""
    with pytest.raises(ConfigurationError, match=r"down_proj has 22 inputs, no multiple of 4"):
        prune_linear_layers(llama(inner=22), Sparsity.parse("2:4"))
