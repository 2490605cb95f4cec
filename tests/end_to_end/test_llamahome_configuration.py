"""The training configuration that LlamaHome's documentation prints."""

from __future__ import annotations

import json

import pytest
from command_line import corpus, run, tiny

CONFIGURATION = """\
training:
  pipeline:
    batch_size: "auto"
    prefetch: 2
    max_memory: 0.8
  optimization:
    mixed_precision: true
    gradient_checkpointing: true
    compile_mode: "reduce-overhead"
  resources:
    gpu_memory_fraction: 0.9
    cpu_workers: "auto"
    io_queue_size: 1000
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains_as_its_document_writes_it(tmp_path):
    """Mixed precision, gradient checkpointing and the compile mode are those of the run, which ends well."""
    (tmp_path / "llamahome.yaml").write_text(CONFIGURATION)
    chosen = [setting for setting in tiny(corpus(tmp_path)) if not setting.startswith("optimizer.precision")]
    process = run(
        "train", "--config", "llamahome.yaml", *chosen, "run.name=home", "run.budget.steps=2", cwd=tmp_path, timeout=580
    )
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / "runs" / "home" / "run.json").read_text())["settings"]
    assert record["optimizer"]["precision"] == "bf16"
    assert (record["model"]["gradient_checkpointing"], record["model"]["compile"]) == ("full", "reduce-overhead")
    assert (tmp_path / "runs" / "home" / "checkpoints" / "checkpoint-2").is_dir()
