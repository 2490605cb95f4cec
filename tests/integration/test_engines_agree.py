"""However a model is spread over processes, it learns the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LARGEST = 5e-6  # relative difference of a step's loss
LARGEST_IN_A_PIPELINE = 1e-6
# Another order of sums alone moves a loss in fp32 by up to 3e-6 in 30 steps, one process's own four parts by 1.4e-6
# without AVX-512; with weights in fp64, 2e-7 is left, the rounding of the loss itself.
LARGEST_OF_WEIGHTS = {"fp32": LARGEST, "fp64": 1e-6}
SHARDED_BY_DEEPSPEED = ["zero1", "zero2", "zero3", "zero2-offload"]


def free_port():
    """Return a port of those that no system gives out by itself: one of them could be taken before the ranks meet."""
    return next(filter(is_free, count(10_000 + os.getpid() % 2_000 * 10)))


def is_free(port):
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def losses_of(engine, num_ranks, *kind_and_precision):
    """Train in ``num_ranks`` processes; return the losses, by what was run."""
    return said_by("engine_ranks.py", num_ranks, engine, *kind_and_precision)


def said_by(script, num_ranks, *arguments):
    """Run a script of ``tests/support`` in ``num_ranks`` processes; return the JSON that the first one says last."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if num_ranks > 1:
        environment |= {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE.parent / "support" / script), *arguments],
            env={**environment, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if num_ranks > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    outputs = [rank.communicate(timeout=850) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * num_ranks, outputs[0][1][-3000:]
    return json.loads(outputs[0][0].strip().splitlines()[-1])


@pytest.fixture(scope="module")
def alone():
    """Return the losses of one process."""
    losses = losses_of("ddp", 1)["1"]
    assert losses[0] - losses[-1] >= 1, "a run that learns nothing would prove nothing"
    return losses


def difference(losses, expected):
    return max(abs(loss / other - 1) for loss, other in zip(losses, expected, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["ddp", "fsdp2", *SHARDED_BY_DEEPSPEED])
def test_two_ranks_learn_as_one_process_does(engine, alone):
    """With uneven numbers of tokens a rank and a part, in one part or four, each loss is that of one process."""
    found = losses_of(engine, 2)
    for accumulation in ("1", "4"):
        assert difference(found[accumulation], alone) <= LARGEST, (engine, accumulation)
    if "per rank" in found:
        assert difference(found["per rank"], alone) > 100 * LARGEST, "weighing ranks alike was not noticed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_balance_experts_as_one_process_does():
    """Under DDP and FSDP2 a mixture of experts with its balancing loss has the losses and loads of one process."""
    alone = losses_of("ddp", 1, "mixtral")
    assert alone["1"][0] - alone["1"][-1] >= 0.1, "a run that learns nothing would prove nothing"
    for engine in ("ddp", "fsdp2"):
        found = losses_of(engine, 2, "mixtral")
        for accumulation in ("1", "4"):
            assert difference(found[accumulation], alone["1"]) <= 1e-4, (engine, accumulation)
        assert found["figures"] == pytest.approx(alone["figures"], rel=1e-2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "decoder"])
def test_a_mesh_learns_as_one_process_does(kind, precision):
    """With shared heads, neurons and vocabulary, and with divided rows, each loss is that of one process."""
    alone = losses_of("ddp", 1, kind, precision)["1"]
    assert alone[0] - alone[-1] >= 1, "a run that learns nothing would prove nothing"
    for engine in ("fsdp2+tensor=2", "fsdp2+context=2"):
        found = losses_of(engine, 2, kind, precision)
        for accumulation in ("1", "4"):
            assert difference(found[accumulation], alone) <= LARGEST_OF_WEIGHTS[precision], (engine, accumulation)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_learns_as_one_process_does():
    """With the layers on two ranks, in one stage each or in two, each loss is that of one process."""
    alone = losses_of("ddp", 1, "decoder-4")["1"]
    assert alone[0] - alone[-1] >= 1, "a run that learns nothing would prove nothing"
    for engine in ("ddp+pipeline=2", "ddp+pipeline=2+schedule=interleaved"):
        found = losses_of(engine, 2, "decoder-4")
        for accumulation in ("1", "4"):
            assert difference(found[accumulation], alone) <= LARGEST_IN_A_PIPELINE, (engine, accumulation)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["fsdp2+tensor=2", "ddp+tensor=2", "fsdp2+replicate=2", "fsdp2+context=2"])
def test_four_ranks_on_two_axes_learn_as_one_process_does(engine):
    """With two groups of rows, or two replicas of shards, each loss is that of one process."""
    alone = losses_of("ddp", 1, "llama", "fp64")["1"]
    found = losses_of(engine, 4, "llama", "fp64")
    for accumulation in ("1", "4"):
        assert difference(found[accumulation], alone) <= LARGEST_OF_WEIGHTS["fp64"], accumulation


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "decoder"])
def test_documents_of_a_divided_row_are_kept_apart(kind):
    """The logits of rows of three documents are those of each document alone, also across the ranks' border."""
    largest, size = said_by("context_ranks.py", 2, kind)
    assert largest <= 1e-5
    assert size > 1e-2, "logits of nothing would prove nothing"
