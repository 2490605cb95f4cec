"""The comparison of a chunked loss with the plain one on the first batch that a model trains on."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.loss_probe import LossDifference, LossProbe, LossTolerance
from holdfast.ports.testing.optimizer import (
    END_OF_TEXT,
    VOCABULARY_SIZE,
    files_of,
    packed_batch,
    take_step,
    without_targets,
)
from tests.contracts.test_optimizer import TINY

LANGUAGE_MODEL = importlib.import_module("holdfast.adapters.shared.modeling.causal_language_model")


def probed(*, precision="fp32", loss="chunked", own_loss=None, batches=(0,), **changes):
    """Train a tiny model on ``batches`` with a probe; return the differences that it found, and the trained files."""
    factory = HuggingfaceModelFactory(config=TINY | changes)
    model = factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)
    model.loss, model.own_loss = loss, own_loss
    found = []
    model.loss_probe = LossProbe(found.append)
    trainable = AccelerateOptimizer(device="cpu", precision=precision).prepare(model)
    trainable.evaluate(packed_batch())
    assert not found, "an evaluation is not the first batch of training"
    for step, batch in enumerate(batches, 1):
        take_step(trainable, packed_batch(seed=batch), step=step, rate=0.01)
    return found, files_of(trainable.capture())


def doubled_gradient(*arguments, **options):
    """Return the chunked loss with twice its gradient."""
    loss = CHUNKED(*arguments, **options)
    return 2 * loss - loss.detach()


def shifted(*arguments, **options):
    """Return one per mille more than the chunked loss."""
    return 1.001 * CHUNKED(*arguments, **options)


CHUNKED = LANGUAGE_MODEL.chunked_cross_entropy


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_the_chunked_loss_agrees_once(precision, is_tied):
    """In each precision the chunked loss is compared on the first batch only, and within the tolerance."""
    found, _ = probed(precision=precision, batches=(0, 1), tie_word_embeddings=is_tied)
    assert len(found) == 1
    assert LossTolerance.of(precision).allows(found[0])


def squared(logits, labels):
    """Return the sum of the squared logits of the targets: a loss of tokens that do not depend on each other."""
    kept = labels != -100
    return (logits[kept].gather(1, labels[kept][:, None]) ** 2).sum()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("own_loss", [None, squared])
def test_the_comparison_leaves_no_trace(precision, own_loss):
    """Weights and optimizer after training with the comparison are those without it, bit for bit."""
    _, with_probe = probed(batches=(0, 1), precision=precision, own_loss=own_loss)
    factory = HuggingfaceModelFactory(config=TINY)
    model = factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)
    model.own_loss = own_loss
    trainable = AccelerateOptimizer(device="cpu", precision=precision).prepare(model)
    for step, batch in enumerate((0, 1), 1):
        take_step(trainable, packed_batch(seed=batch), step=step, rate=0.01)
    assert files_of(trainable.capture()) == with_probe


@pytest.mark.parametrize("broken", [doubled_gradient, shifted])
def test_a_wrong_loss_or_gradient_is_beyond_the_tolerance(broken, monkeypatch):
    """A loss that is off by a per mille, and a gradient of twice the size, are found."""
    monkeypatch.setattr(LANGUAGE_MODEL, "chunked_cross_entropy", broken)
    found, _ = probed()
    assert not LossTolerance.of("fp32").allows(found[0])


def test_a_loss_of_another_package_is_compared_with_itself_on_all_logits():
    """A loss in chunks agrees with the same loss on all logits, and one that depends on the chunk does not."""
    calls = []

    def of_the_call(logits, labels):
        calls.append(1)
        return squared(logits, labels) * len(calls)

    assert LossTolerance.of("fp32").allows(probed(own_loss=squared)[0][0])
    assert not LossTolerance.of("fp32").allows(probed(own_loss=of_the_call)[0][0])


def test_a_difference_that_is_not_a_number_is_not_allowed():
    """NaN and infinity are beyond every tolerance."""
    for wrong in (torch.nan, torch.inf):
        assert not LossTolerance.of("bf16").allows(LossDifference(wrong, 0.0))
        assert not LossTolerance.of("bf16").allows(LossDifference(0.0, wrong))


def test_a_batch_without_targets_is_not_judged():
    """Nothing is judged where no token is a target."""
    factory = HuggingfaceModelFactory(config=TINY)
    model = factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)
    found = []
    model.loss_probe = LossProbe(found.append)
    trainable = AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)
    with trainable.update(step=1, learning_rate=0.0) as update:
        update.accumulate(without_targets(packed_batch()), weight=1.0, last=True)
    assert found == []


def test_liger_is_judged_too(monkeypatch):
    """The loss of Liger's kernels is compared, and one that rounds the head too much is beyond the tolerance."""

    def exact(hidden, weight, bias, labels):
        return cross_entropy(linear(hidden, weight, bias).float(), labels, reduction="sum")

    def rounded(hidden, weight, bias, labels):
        coarse = weight + (weight.to(torch.float8_e5m2).float() - weight).detach()
        return exact(hidden, coarse, bias, labels)

    for function, is_allowed in ((exact, True), (rounded, False)):
        monkeypatch.setattr(LANGUAGE_MODEL, "liger_cross_entropy", function)
        found, _ = probed(loss="liger")
        assert LossTolerance.of("fp32").allows(found[0]) is is_allowed
