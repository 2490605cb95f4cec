from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, GPTBigCodeForCausalLM, LlamaConfig

from holdfast.adapters.shared.model_export.torchao_folder import with_linear_layers
from holdfast.adapters.shared.model_export.whole_model import WholeModel


def test_gpt2_with_linear_layers_computes_the_same():
    """GPT-2 and the model with torch's linear layers have the same logits within 1e-5."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=4, n_inner=48)
    network = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    tensors = {name: each for name, each in network.state_dict().items() if name != "lm_head.weight"}
    linear = with_linear_layers(WholeModel(config, tensors))
    other = GPTBigCodeForCausalLM(linear.config).eval()
    outcome = other.load_state_dict(dict(linear.tensors), strict=False)
    assert (outcome.missing_keys, outcome.unexpected_keys) == (["lm_head.weight"], [])
    ids = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(other(ids).logits, network(ids).logits, rtol=0, atol=1e-5)


def test_other_models_stay():
    """A model that has linear layers already is returned as it is."""
    model = WholeModel(LlamaConfig(), {})
    assert with_linear_layers(model) is model
