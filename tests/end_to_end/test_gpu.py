"""The same promises on an accelerator."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.command_line import Hold, corpus, environment, losses, run, start, tiny, wait_for_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
FOLDER = Path("runs/default")

# The share is set to what the process holds once it has evaluated, and so many bytes.
LIMITED = """
import sys
import torch
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import EvaluationCompleted

headroom, *overrides = sys.argv[1:]
run = build(load_settings([], overrides, {}).settings)

def limit(event):
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + int(headroom)) / total)

if int(headroom):
    run.subscribe(EvaluationCompleted, limit)
run.run()
"""


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


@pytest.mark.parametrize("mode", ["none", "default"])
def test_kill_nine_changes_nothing_on_a_gpu(tmp_path, settings, mode):
    """A killed and resumed deterministic run, compiled or not, ends with the bytes of an undisturbed one."""
    settings = [*settings, f"model.compile={mode}"]
    homes = [tmp_path / name for name in ("undisturbed", "killed")]
    for home in homes:
        home.mkdir()
    assert run("train", *settings, cwd=homes[0], timeout=200).returncode == 0
    hold = Hold(tmp_path)
    hold.behind(19)
    process = start("train", *settings, hold.settings, cwd=homes[1])
    wait_for_checkpoint(homes[1] / FOLDER, 10, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert run("train", *settings, cwd=homes[1], timeout=200).returncode == 0
    weights = [(home / FOLDER / "checkpoints/checkpoint-30/model.safetensors").read_bytes() for home in homes]
    assert weights[0] == weights[1]
    assert losses(homes[0] / FOLDER) == losses(homes[1] / FOLDER)


def test_a_share_of_the_gpu_changes_only_the_micro_batch(tmp_path, settings):
    """With a share of the device's memory that the whole batch does not fit into, losses stay within 1e-5."""
    found = []
    for name, headroom in (("free", 0), ("tight", 96 * 2**20)):
        home = tmp_path / name
        home.mkdir()
        more = ["optimizer.precision=fp32", "data.sequence_length=512", "optimizer.batch_size=64", "evaluation.every=0"]
        command = [sys.executable, "-c", LIMITED, str(headroom), *settings, *more, "state_store.every=0"]
        done = subprocess.run(
            command, cwd=home, env=environment(), capture_output=True, text=True, timeout=140, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = (home / FOLDER / "metrics.jsonl").read_text().splitlines()
        sizes = [record["micro_batch"] for record in map(json.loads, lines) if "micro_batch" in record]
        found.append((losses(home / FOLDER), min(sizes)))
    (free, whole), (tight, smaller) = found
    assert smaller < whole == 64
    assert free.keys() == tight.keys()
    assert max(abs(tight[step] - loss) / loss for step, loss in free.items()) < 1e-5
