"""Loss masks of packed documents: what each document contributes is what it contributes alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.decoder.decoder_attention import ATTENTIONS
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from tests.support.decoder_shapes import GPT2, LLAMA

VOCABULARY, END = 97, 96
LARGEST = 1e-5
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
FAMILIES = {
    "llama": {"model_type": "llama", "num_hidden_layers": 2, **SIZES},
    "qwen3": {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 8, **SIZES},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4}
    | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
}
each_loss = pytest.mark.parametrize("loss", ["plain", "chunked"])


def masked_documents():
    """Return documents, and which of their tokens are trained on: some, none, all, and the first one only."""
    generator = np.random.default_rng(3)
    documents = [generator.integers(0, END, length) for length in (7, 12, 2, 21, 1, 5, 30, 17)]
    masks = [generator.random(len(document)) < 0.4 for document in documents]
    masks[1][:], masks[3][:], masks[5][:] = False, True, False
    masks[5][0] = True
    return documents, masks


def built(factory):
    """Return a model with weights so large that a leak between documents would show."""
    model = factory.build(vocabulary_size=VOCABULARY, end_of_text=END, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def mean_gradients(model, batches):
    """Return the mean loss over the targets of all batches, and its gradients."""
    weight = 1 / sum(batch.num_targets for batch in batches)
    model.zero_grad()
    total = torch.zeros(())
    for batch in batches:
        names = ("input_ids", "position_ids", "loss_mask")
        loss = model(**{name: torch.from_numpy(getattr(batch, name)) for name in names})
        (loss * weight).backward()
        total += loss.detach() * weight
    return total, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def check(model, packing):
    """Check that packed documents give loss and gradients of the documents' pieces alone, under the same mask."""
    documents, masks = masked_documents()
    packed = read_rows(place_rows(documents, packing, masks), packing.length)
    pieces = list(packed.pieces())
    assert sum(piece.num_targets == 0 for piece in pieces) >= 3
    assert 0 < packed.num_targets < 0.7 * packed.num_tokens
    (loss, gradients), (alone_loss, alone) = mean_gradients(model, [packed]), mean_gradients(model, pieces)
    torch.testing.assert_close(loss, alone_loss, rtol=LARGEST, atol=LARGEST)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, alone[name], rtol=0, atol=LARGEST, msg=name)
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-3


@each_loss
@pytest.mark.parametrize("attention", ["sdpa", "eager", "varlen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_masked_document_teaches_what_it_teaches_alone(family, attention, loss):
    """Loss and gradients of packed rows with a mask are those of each document alone, whatever attention and loss."""
    model = built(HuggingfaceModelFactory(config=FAMILIES[family], attention=attention))
    model.loss = loss
    check(model, BestFitPacking(32))


@each_loss
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_the_own_decoder_keeps_the_mask(config, attention, loss):
    """The own decoder, too, learns from packed and cut rows what it learns from their pieces one by one."""
    model = built(DecoderModelFactory(config=config, attention=attention))
    model.loss = loss
    check(model, ConcatPacking(32))


@each_loss
def test_other_targets_have_no_influence(loss):
    """Targets that are masked may be any token at the end of a document: neither loss nor gradients change."""
    model = built(HuggingfaceModelFactory(config=FAMILIES["llama"]))
    model.loss = loss
    documents, masks = masked_documents()
    found = []
    for last in (1, 2):
        for document, mask in zip(documents, masks, strict=True):
            document[-1], mask[-1] = last, False
        found.append(mean_gradients(model, [read_rows(place_rows(documents, BestFitPacking(32), masks), 32)]))
    (loss_one, one), (loss_two, two) = found
    torch.testing.assert_close(loss_one, loss_two, rtol=0, atol=LARGEST)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=LARGEST, msg=name)
