import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.memory_of_loss import peak_of_loss
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.loss_selection import choose_loss
from holdfast.adapters.shared.modeling.losses import IGNORED, chunked_cross_entropy, chunked_rows, rows_at_once
from holdfast.domain.errors import ConfigurationError

SMALL = LlamaConfig(
    vocab_size=61,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)


def case(*, tokens=67, vocabulary=301, width=16, bias=False, seed=0, ignored=0.2):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, width, generator=generator, requires_grad=True)
    vector = torch.randn(vocabulary, generator=generator, requires_grad=True) if bias else None
    labels = torch.randint(0, vocabulary, (tokens,), generator=generator)
    labels[torch.rand(tokens, generator=generator) < ignored] = IGNORED
    return hidden, weight, vector, labels


def plain(hidden, weight, bias, labels):
    logits = linear(hidden, weight, bias).float()
    return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def gradients(loss, *tensors, scale=1.0):
    return torch.autograd.grad(loss * scale, [tensor for tensor in tensors if tensor is not None])


def differences(here, there):
    pairs = zip(here, there, strict=True)
    return [float((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12)) for mine, theirs in pairs]


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 90),
    rows=st.integers(1, 100),
    bias=st.booleans(),
    ignored=st.sampled_from([0.0, 0.4, 1.0]),
    scale=st.sampled_from([1.0, 0.3]),
)
def test_the_chunked_loss_is_the_plain_one(tokens, rows, bias, ignored, scale):
    """Value and gradients are those of all logits at once, whatever the chunks and whichever labels count."""
    *parts, labels = case(tokens=tokens, bias=bias, ignored=ignored)
    expected = plain(*parts, labels)
    loss = chunked_cross_entropy(*parts, labels, rows_at_once=rows)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    found = gradients(loss, *parts, scale=scale)
    assert max(differences(found, gradients(expected, *parts, scale=scale))) <= 1e-5


@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("bias", [False, True])
def test_the_loss_of_each_label_is_written_where_it_is_asked_for(bias, ignored):
    """Each label has the loss that it has alone, ignored ones keep their place, and the sum is the same number."""
    *parts, labels = case(bias=bias, ignored=ignored)
    each = torch.zeros(len(labels))
    with torch.no_grad():
        total = chunked_cross_entropy(*parts, labels, rows_at_once=20, each=each)
        assert total == chunked_cross_entropy(*parts, labels, rows_at_once=20)
        logits = linear(*parts)
    torch.testing.assert_close(each, cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none"))


@pytest.mark.parametrize("loss", ["plain", "chunked"])
def test_an_evaluation_writes_the_loss_of_each_token_at_its_place(loss):
    """A model writes the loss of each target where it stands in the row, however it computes the sum."""
    torch.manual_seed(0)
    model = CausalLanguageModel(LlamaForCausalLM(SMALL)).eval()
    model.loss = loss
    ids = torch.randint(0, SMALL.vocab_size, (3, 12))
    mask = torch.rand(3, 12) < 0.7
    mask[:, 0] = False
    positions = torch.arange(12).expand(3, 12)
    with torch.no_grad():
        plain_sum = model(ids, positions, mask)
        model.token_losses = torch.zeros(3, 12)
        total = model(ids, positions, mask)
        scores = model.network(input_ids=ids, position_ids=positions).logits[:, :-1]
    expected = torch.zeros(3, 12)
    expected[:, 1:] = cross_entropy(scores.transpose(1, 2), ids[:, 1:], reduction="none") * mask[:, 1:]
    assert total == plain_sum
    torch.testing.assert_close(model.token_losses, expected)


@pytest.mark.parametrize("bias", [False, True])
def test_in_half_precision_the_chunked_loss_is_the_plain_one(bias):
    """Under bf16 autocast the value is the plain one's, and no gradient is farther from the exact one."""
    *parts, labels = case(tokens=600, vocabulary=1000, bias=bias)
    exact = gradients(plain(*parts, labels), *parts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = plain(*parts, labels)
        loss = chunked_cross_entropy(*parts, labels, rows_at_once=64)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    theirs = differences(gradients(expected, *parts), exact)
    ours = differences(gradients(loss, *parts), exact)
    assert max(theirs) > 1e-4  # half precision was used at all
    assert all(mine <= 1.5 * other for mine, other in zip(ours, theirs, strict=True))


def test_labels_that_do_not_count_cost_nothing():
    """Hidden states whose label is left out are never looked at, and get a gradient of zero."""
    hidden, weight, _, labels = case()
    expected = plain(hidden, weight, None, labels)
    spoilt = hidden.detach().clone()
    spoilt[labels == IGNORED] = float("nan")
    spoilt.requires_grad_()
    loss = chunked_cross_entropy(spoilt, weight, None, labels, rows_at_once=8)
    (gradient,) = gradients(loss, spoilt)
    torch.testing.assert_close(loss, expected)
    assert gradient[labels == IGNORED].abs().sum() == 0


def test_frozen_parameters_get_no_gradient():
    """A weight that is not trained has none, and the hidden states theirs all the same."""
    hidden, weight, _, labels = case()
    expected = gradients(plain(hidden, weight, None, labels), hidden)
    loss = chunked_cross_entropy(hidden, weight.detach(), None, labels, rows_at_once=8)
    assert max(differences(gradients(loss, hidden), expected)) <= 1e-5


def test_without_gradients_the_value_is_the_same():
    """Evaluation gets the loss, and no graph."""
    *parts, labels = case(bias=True)
    with torch.no_grad():
        loss = chunked_cross_entropy(*parts, labels, rows_at_once=8)
    torch.testing.assert_close(loss, plain(*parts, labels).detach())
    assert not loss.requires_grad


def test_a_second_backward_is_refused():
    """The gradients are there once: a second backward raises, and never gives other ones."""
    *parts, labels = case()
    loss = chunked_cross_entropy(*parts, labels, rows_at_once=8)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward"):
        loss.backward()


def test_an_own_loss_is_computed_in_chunks():
    """A loss of one's own, summed chunk by chunk, has the value and the gradients that it has on all logits."""

    def smoothed(logits, labels):
        return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=0.1)

    hidden, weight, _, labels = case()
    expected = smoothed(linear(hidden, weight), labels)
    loss = chunked_rows(smoothed, hidden, lambda part: linear(part, weight), labels, rows_at_once=8)
    torch.testing.assert_close(loss, expected)
    assert max(differences(gradients(loss, hidden, weight), gradients(expected, hidden, weight))) <= 1e-5


def test_an_own_loss_is_for_training_only():
    """A model learns by a loss of one's own and is evaluated in nats of cross-entropy."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = CausalLanguageModel(LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)))
    ids = torch.arange(20)[None]
    batch = {"input_ids": ids, "position_ids": ids, "loss_mask": ids > 0}
    choose_loss(model)
    usual = model(**batch).item()
    choose_loss(model, "twice", own_loss=lambda logits, labels: 2 * cross_entropy(logits, labels, reduction="sum"))
    assert model.train()(**batch).item() == pytest.approx(2 * usual)
    assert model.eval()(**batch).item() == pytest.approx(usual)


def test_a_loss_that_is_not_there_is_refused():
    """A misspelt loss, and one whose package is not installed, is named in one sentence."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = CausalLanguageModel(LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)))
    with pytest.raises(ConfigurationError, match="chunkd"):
        choose_loss(model, "chunkd")


def test_a_chunk_s_logits_take_64_mib():
    """Chunks are as many tokens as 64 MiB of fp32 logits hold, but never so few that products starve."""
    assert rows_at_once(128_000) == 131
    assert rows_at_once(256) == 65_536
    assert rows_at_once(10_000_000) == 64


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_all_logits_are_never_there():
    """A step with the chunked loss takes half the memory of the Hugging Face model's own loss, or less."""
    sizes = {"vocabulary": 50_000, "width": 32, "tokens": 2048}
    chunked, theirs = (peak_of_loss(way, **sizes) for way in ("chunked", "huggingface"))
    assert theirs > 2048 * 50_000 * 4  # it does hold them
    assert chunked <= 0.5 * theirs
