"""The refusal of a plan that does not fit on the disk, and the lines of a plan."""

from __future__ import annotations

import copy

import pytest

from holdfast.bootstrap.cli.plan_lines import plan_lines
from holdfast.bootstrap.operations.plan_run import refuse_full_disk
from holdfast.domain.errors import ConfigurationError

PARTS = {"start": 10.0, "steps": 80.0, "evaluations": 5.0, "saves": 1.0, "end": 4.0}
FORMULA = dict.fromkeys(("weights", "gradients", "optimizer", "buffers", "activations", "loss"), 1e6)
PLAN = {
    "model": {"parameters": 1000, "trained_parameters": 10, "precision": "bf16", "device": "cuda"},
    "memory": {
        "ranks": 2,
        "formula_bytes": {**FORMULA, "peak": 5e6, "host": 2e6},
        "peak_bytes": [3e9, 6e9],
        "limit_bytes": [12e9, 12e9],
    },
    "step": {"rows": 8, "length": 64, "micro_batch": 1},
    "data": {
        "mode": "stream",
        "steps": 40,
        "tokens": 20480,
        "tokens_there": None,
        "epochs": None,
        "shares": [{"from_row": 0, "sources": {"web": 0.75, "code": 0.25}}],
    },
    "disk": {
        "token_bytes": None,
        "checkpoint_bytes": 100,
        "checkpoints_kept": 3,
        "peak_bytes": 400,
        "metrics_bytes": 10,
        "free_bytes": 400,
    },
    "time": {"seconds": 100.0, "a_step": 2.0, "trial_steps": 12, "parts": PARTS},
    "cost": {"price_per_hour": 36.0, "total": 1.0},
    "sample": None,
    "notes": ["memory is short"],
}


def test_checkpoints_that_fill_the_disk_are_refused():
    """What fits exactly is accepted, and a byte less is refused with both figures."""
    refuse_full_disk(PLAN)
    refuse_full_disk({"disk": {**PLAN["disk"], "peak_bytes": None, "free_bytes": 0}})  # not known without a trial
    plan = copy.deepcopy(PLAN)
    plan["disk"]["free_bytes"] = 399
    with pytest.raises(ConfigurationError, match=r"take 400 bytes at once, but the disk of run\.dir has 399 free"):
        refuse_full_disk(plan)


def test_the_lines_say_each_rank_each_share_and_what_is_not_known():
    """Memory is given by rank and part, the mixture by source, and streamed data have no epochs."""
    text = "\n".join(plan_lines(PLAN))
    assert "1,000 parameters, of which 10 are trained, cuda, bf16, 2 ranks" in text
    assert "rank 0: a measured peak of 2.8 GiB, which is 25% of 11.2 GiB" in text
    assert "rank 1: a measured peak of 5.6 GiB, which is 50% of 11.2 GiB" in text
    assert "and 1.9 MiB in host memory" in text
    assert "from row 0 on: web 75.0%, code 25.0%" in text
    assert "their number of tokens is not known" in text
    assert "512 tokens, micro-batches of 1 row\n" in text
    assert "cost:   1.00, at 36 an hour for all machines together" in text
    assert "note:   memory is short" in text
