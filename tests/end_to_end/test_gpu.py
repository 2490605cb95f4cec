"""The same promises on an accelerator."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from command_line import corpus, losses, run, start, tiny, wait_for_step

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
FOLDER = Path("runs/default")


@pytest.fixture
def settings(tmp_path):
    """Return the settings of a tiny run on the GPU in the precision that it would choose."""
    if not torch.cuda.is_available():
        pytest.fail("the marker gpu asks for a CUDA device, and there is none")
    return tiny(corpus(tmp_path), "optimizer.device=cuda", "optimizer.precision=auto")


def test_a_gpu_run_reports_what_it_uses(tmp_path, settings):
    """Metrics hold the device's memory, and the share of its peak where the peak is known."""
    process = run("train", *settings, cwd=tmp_path, timeout=200)
    assert process.returncode == 0, process.stderr
    record = json.loads((tmp_path / FOLDER / "metrics.jsonl").read_text().splitlines()[-2])
    assert record["memory_bytes"] > 0
    if any(name in torch.cuda.get_device_name() for name in ("H100", "H200", "A100")):
        assert 0 < record["mfu"] < 1


def test_kill_nine_changes_nothing_on_a_gpu(tmp_path, settings):
    """A killed and resumed deterministic run ends with the bytes of an undisturbed one."""
    homes = [tmp_path / name for name in ("undisturbed", "killed")]
    for home in homes:
        home.mkdir()
    assert run("train", *settings, cwd=homes[0], timeout=200).returncode == 0
    process = start("train", *settings, cwd=homes[1])
    wait_for_step(homes[1] / FOLDER, 12, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run("train", *settings, cwd=homes[1], timeout=200).returncode == 0
    weights = [(home / FOLDER / "checkpoints/checkpoint-30/model.safetensors").read_bytes() for home in homes]
    assert weights[0] == weights[1]
    assert losses(homes[0] / FOLDER) == losses(homes[1] / FOLDER)
