"""The training configuration that LlamaHome's documentation prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import corpus, run, tiny

CONFIGURATION = Path(__file__).parents[1] / "llamahome.yaml"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains_as_its_document_writes_it(tmp_path):
    """Mixed precision, gradient checkpointing and the compile mode are those of the run, which ends well."""
    chosen = [setting for setting in tiny(corpus(tmp_path)) if not setting.startswith("optimizer.precision")]
    process = run(
        "train",
        "--config",
        str(CONFIGURATION),
        *chosen,
        "run.name=home",
        "run.budget.steps=2",
        cwd=tmp_path,
        timeout=580,
    )
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "runs" / "home" / "run.json").read_text())["settings"]
    assert record["optimizer"]["precision"] == "bf16"
    assert (record["model"]["gradient_checkpointing"], record["model"]["compile"]) == ("full", "reduce-overhead")
    assert (tmp_path / "runs" / "home" / "checkpoints" / "checkpoint-2").is_dir()
