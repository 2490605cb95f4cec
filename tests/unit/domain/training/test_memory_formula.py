"""The formula of memory beside what papers say, and beside itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.training.memory_estimate import EngineSetup, LayerShape, ModelShape, Training, estimate_memory

LARGE = ModelShape(7_500_000_000, 32, LayerShape(4096, 16384, 4096, 4096), 50_000)
SMALL = ModelShape(10_000_000, 8, LayerShape(256, 1024, 256, 128), 8192)
ROW = Training(rows=1, length=8)

sizes = st.builds(
    Training, rows=st.integers(1, 64), length=st.integers(8, 4096), precision=st.sampled_from(["fp32", "bf16"])
)


@pytest.mark.parametrize(("stage", "gigabytes"), [(1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_states_of_zero_are_those_of_its_paper(stage, gigabytes):
    """On 64 ranks 7.5 billion parameters take what figure 1 of arXiv 1910.02054 says, in stage 3 a gradient more."""
    training = replace(ROW, engine=EngineSetup("zero", 64, stage=stage), precision="bf16")
    found = estimate_memory(LARGE, training)
    in_fp32 = 4 * LARGE.num_parameters / 64 if stage == 3 else 0
    states = found.weights + found.gradients + found.optimizer - in_fp32
    assert states / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_offload_moves_the_optimizer_to_the_host():
    """What ZeRO-2 keeps for its step lies in host memory, and none of it on the device."""
    here = replace(ROW, engine=EngineSetup("zero", 4, stage=2), precision="bf16")
    near, far = (
        estimate_memory(LARGE, here),
        estimate_memory(LARGE, replace(here, engine=replace(here.engine, is_offloaded=True))),
    )
    assert (near.host, far.optimizer, far.gradients) == (0, 0, 0)
    gradient_of_the_step = 4 * LARGE.num_parameters / 4
    assert far.host == pytest.approx(near.optimizer + near.gradients + gradient_of_the_step)
    assert far.peak < near.peak - 0.9 * near.optimizer


@given(sizes)
def test_a_longer_row_takes_more(training):
    """Memory grows with the tokens that go through at once."""
    longer = replace(training, length=2 * training.length)
    assert estimate_memory(SMALL, longer).peak >= estimate_memory(SMALL, training).peak


@given(sizes, st.integers(2, 64))
def test_sharding_takes_less_states_on_each_rank(training, num_ranks):
    """FSDP2 and ZeRO-3 divide weights, gradients and optimizer by the ranks."""
    for engine in ("fsdp2", "zero"):
        alone = estimate_memory(SMALL, replace(training, engine=EngineSetup(engine, stage=3)))
        shared = estimate_memory(SMALL, replace(training, engine=EngineSetup(engine, num_ranks, stage=3)))
        for part in ("weights", "gradients", "optimizer"):
            assert getattr(shared, part) == pytest.approx(getattr(alone, part) / num_ranks)


@given(sizes)
def test_checkpointing_and_the_chunked_loss_save_memory(training):
    """Checkpointing keeps less, and the chunked loss takes no more than the plain one and some heads."""
    kept, again = (estimate_memory(SMALL, replace(training, checkpoint_every=every)) for every in (0, 1))
    assert again.activations < kept.activations
    plain = estimate_memory(SMALL, replace(training, is_loss_chunked=False))
    head = SMALL.vocabulary_size * SMALL.layer.hidden
    assert kept.loss <= plain.loss + 8 * head + 4 * training.num_tokens * SMALL.layer.hidden
