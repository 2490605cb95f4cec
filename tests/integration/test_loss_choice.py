import pytest
import torch

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.modeling.loss_selection import choose_loss, why_not_chunked
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, packed_batch

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LINEAR = {
    "llama": {"model_type": "llama", **SIZES},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4},
    "phi": {"model_type": "phi", "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4},  # with a bias
}
OTHERS = {
    "soft cap": {"model_type": "gemma2", "head_dim": 8, **SIZES},
    "scaled logits": {"model_type": "granite", "logits_scaling": 8.0, **SIZES},
    "scaled logits of another name": {"model_type": "cohere", **SIZES},
}


def build(config):
    factory = HuggingfaceModelFactory(config=config)
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)


def loss_and_gradients(model):
    batch = packed_batch()
    parts = {name: torch.from_numpy(getattr(batch, name)) for name in ("input_ids", "position_ids", "loss_mask")}
    model.zero_grad()
    loss = model.eval()(**parts)
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("config", [*LINEAR.values(), *OTHERS.values()], ids=[*LINEAR, *OTHERS])
def test_the_chosen_loss_is_that_of_all_logits(config):
    """Whatever way is chosen for a model, loss and gradients are those of its own logits."""
    model = build(config)
    found = loss_and_gradients(model)
    choose_loss(model, "plain")
    torch.testing.assert_close(found, loss_and_gradients(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", LINEAR.values(), ids=LINEAR)
def test_a_model_with_a_linear_head_never_holds_all_logits(config):
    """Where the logits are the hidden states times a matrix, the chunked loss is chosen, and there is no note."""
    model = build(config)
    assert model.loss == "chunked"
    assert not model.notes


@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS)
def test_a_model_that_alters_its_logits_is_told_apart(config):
    """Soft caps and scales behind the head, which hardly show in fresh weights, are found, and a note says so."""
    model = build(config)
    assert model.loss == "plain"
    assert "all logits" in " ".join(model.notes)
    with pytest.raises(ConfigurationError, match="chunked"):
        choose_loss(model, "chunked")


def test_the_probe_leaves_no_trace():
    """Weights, gradients, training mode, hooks and random state are as they were."""
    model = build(LINEAR["llama"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    assert why_not_chunked(model.network) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())
    assert not model.network.get_output_embeddings()._forward_pre_hooks
