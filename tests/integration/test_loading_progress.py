"""The progress of transformers while it loads weights."""

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from holdfast.adapters.model_factory.loaded_weights import loading_shown
from holdfast.domain.phase import Amount


def test_the_tensors_that_are_loaded_are_shown(tmp_path):
    """Each tensor of a model is counted, and transformers' own bars are back afterwards."""
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    number, shown = len(list(model.parameters())), []
    with loading_shown(lambda *phase: shown.append(phase)):
        loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert len(list(loaded.parameters())) == number
    assert [phase for phase in shown if phase[0] == "loading weights"] == [
        ("loading weights", Amount(done, number, "tensors")) for done in range(number)
    ]
    assert logging.set_tqdm_hook(None) is None
