"""Optimizers keep their promises on two ranks as well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process_group_ranks import reserved_port

HERE = Path(__file__).parent
SUITE = HERE / "optimizer_on_ranks.py"
PIPELINES = ("ddp+pipeline=2", "ddp+pipeline=2+schedule=interleaved")
SHARDED = ("fsdp2", "fsdp2+tensor=2", "fsdp2+context=2", *PIPELINES, "zero1", "zero2", "zero3", "zero2-offload")


def run_on_two_ranks(engine, tmp_path):
    """Run the suite on both ranks at the same time, in the same order; return what each printed and ended with."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    pytest_call = [
        sys.executable,
        "-c",
        (
            "import sys, pytest; from holdfast.bootstrap.cli.main import end_with; "
            "end_with(lambda: int(pytest.main(sys.argv[1:])))"
        ),
        str(SUITE),
        "-q",
        "-n",
        "0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    ]
    if engine.startswith("zero"):  # DeepSpeed's own code is full of them
        pytest_call += ["-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning", "-W", "ignore::UserWarning"]
    with reserved_port() as port:
        place["MASTER_PORT"] = str(port)
        ranks = [
            subprocess.Popen(
                [*pytest_call, f"--basetemp={tmp_path / str(rank)}", "--timeout=800"],
                env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank), "HOLDFAST_TEST_ENGINE": engine},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        return [(rank.communicate(timeout=850)[0], rank.returncode) for rank in ranks]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "engine",
    [
        "ddp",
        "ddp in fp16",
        "ddp with average",
        "fsdp2 in fp16",
        "fsdp2 with average",
        "ddp+pipeline=2 with average",
        *SHARDED,
    ],
)
def test_every_promise_holds_on_two_ranks(engine, tmp_path):
    """The contract suite passes on both of two ranks that train one model together."""
    for output, code in run_on_two_ranks(engine, tmp_path):
        assert code == 0, output[-6000:]
        assert " passed" in output
