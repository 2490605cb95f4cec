"""The published laws that choose batch, learning rate and length of a training."""

from __future__ import annotations

import pytest

from holdfast.domain.training.size_rules import (
    LlamaShape,
    best_batch_tokens,
    best_learning_rate,
    rows_of_batch,
    training_flops,
)

SHAPE = LlamaShape(768, 2048, 12, 12, 12, 50304, tie_word_embeddings=True)


def test_the_published_example_is_met():
    """DeepSeek LLM 7B saw 2T tokens at a rate of 4.2e-4, in steps of 2304 rows of 4096 (arXiv 2401.02954, table 2)."""
    seven = LlamaShape(4096, 11008, 30, 32, 32, 102400, tie_word_embeddings=False)
    flops = training_flops(seven, 2 * 10**12, 4096)
    assert best_learning_rate(flops) == pytest.approx(4.2e-4, rel=0.03)
    assert best_batch_tokens(flops) == pytest.approx(2304 * 4096, rel=0.05)


def test_more_compute_has_a_larger_batch_and_a_lower_rate():
    """Both laws are powers: a million times the compute takes 92 times the batch and 0.18 of the rate."""
    assert best_batch_tokens(1e21) / best_batch_tokens(1e15) == pytest.approx(91.7, rel=0.01)
    assert best_learning_rate(1e21) / best_learning_rate(1e15) == pytest.approx(0.178, rel=0.02)


def test_tied_embeddings_are_counted_once():
    """The head of an untied model has as many weights as its embeddings."""
    untied = LlamaShape(768, 2048, 12, 12, 12, 50304, tie_word_embeddings=False)
    assert untied.parameters - SHAPE.parameters == 50304 * 768
    assert untied.layer_parameters == SHAPE.layer_parameters == 12 * (4 * 768**2 + 3 * 768 * 2048)


def test_attention_costs_more_in_longer_rows():
    """The operations of a token grow by the length of its row, in proportion to width and depth."""
    longer, shorter = (training_flops(SHAPE, 1, length) for length in (2048, 1024))
    assert longer - shorter == 12 * 12 * 768 * 1024


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (1023, 1), (1500, 2), (100_000, 128), (64 * 1024, 64)])
def test_the_rows_of_a_batch_are_a_power_of_two(tokens, rows):
    """Powers of two are shared evenly by any usual number of processes."""
    assert rows_of_batch(tokens, 1024) == rows
