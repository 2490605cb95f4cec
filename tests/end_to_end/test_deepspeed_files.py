"""The DeepSpeed files that ship, taken by a run of two processes as a user starts it."""

from __future__ import annotations

import json
import math

import pytest

from tests.support.command_line import ROOT, corpus, losses, run, run_here, tiny


def train(tmp_path, name, *more):
    settings = [
        *("optimizer.kind=deepspeed", f"optimizer.config={ROOT / 'configs' / name}", "distributed.processes=2"),
        *("run.name=shipped", "run.budget.steps=2", "state_store.every=2", "evaluation.at_start=false"),
    ]
    return run("train", *tiny(corpus(tmp_path), *settings, *more), cwd=tmp_path, timeout=850)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["ds_prototype.json", "ds_production.json"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_shipped_file_trains_two_steps_on_two_ranks(tmp_path, name, precision):
    """ZeRO-2 with offload and ZeRO-3 each take two steps of a tiny model, as their file says, and save it."""
    outcome = train(tmp_path, name, f"optimizer.precision={precision}")
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    found = losses(tmp_path / "runs/shipped")
    assert sorted(found) == [1, 2]
    assert all(math.isfinite(loss) for loss in found.values())
    assert list((tmp_path / "runs/shipped").rglob("model.safetensors"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_contradicts_its_file_is_refused_before_training(tmp_path):
    """A clip that the file sets otherwise ends the command with a user's code and one sentence that names both."""
    outcome = train(tmp_path, "ds_prototype.json", "optimizer.clip=0.5")
    assert outcome.returncode == 2, outcome.stderr
    clip = json.loads((ROOT / "configs/ds_prototype.json").read_text())["gradient_clipping"]
    sentence = f"the DeepSpeed file's gradient_clipping is {clip}, but the run's optimizer.clip is 0.5"
    assert sentence in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_process_trains_by_deepspeed_without_a_launcher(tmp_path):
    """Nobody has to start torchrun for a world of one: the run trains, is saved and goes on."""
    path = corpus(tmp_path)
    for steps in (2, 4):
        settings = ("optimizer.kind=deepspeed", "optimizer.stage=2", "run.name=alone", f"run.budget.steps={steps}")
        outcome = run("train", *tiny(path, *settings), cwd=tmp_path, timeout=420)
        assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert sorted(losses(tmp_path / "runs/alone")) == [1, 2, 3, 4]


def test_nvme_without_async_io_is_refused_in_a_sentence(tmp_path):
    """Where DeepSpeed cannot build what reads and writes NVMe, the run ends with a user's code and says what to do."""
    builders = pytest.importorskip("deepspeed.ops.op_builder")
    if builders.AsyncIOBuilder().is_compatible(verbose=False):
        pytest.skip("async_io can be built here")
    zero = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)}}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero}))
    settings = ("optimizer.kind=deepspeed", "optimizer.config=ds.json", "run.budget.steps=1")
    outcome = run_here("train", *tiny(corpus(tmp_path), *settings), cwd=tmp_path)
    assert outcome.returncode == 2, outcome.stderr[-3000:]
    assert "libaio" in outcome.stderr
    assert "Traceback" not in outcome.stderr
