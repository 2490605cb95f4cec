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


def losses_of(engine, num_ranks, *kind):
    """Run the script in ``num_ranks`` processes; return its losses, by what was run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if num_ranks > 1:
        environment |= {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE.parent / "support/engine_ranks.py"), engine, *kind],
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
