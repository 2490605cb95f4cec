"""A model that cannot fit is refused before it is built, and its run has a story."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.command_line import corpus, environment, run_here, tiny
from tests.support.opened_files import opened_files

GIANT = [
    *("model.config.hidden_size=16384", "model.config.num_hidden_layers=40", "model.config.intermediate_size=65536"),
    *("model.config.num_attention_heads=128", "model.config.num_key_value_heads=128"),
]
THREE_BILLION = [
    *("model.config.hidden_size=3072", "model.config.num_hidden_layers=28", "model.config.intermediate_size=8192"),
    *("model.config.num_attention_heads=24", "model.config.num_key_value_heads=8"),
]
TIGHT = [
    *("model.config.hidden_size=512", "model.config.num_hidden_layers=8", "model.config.intermediate_size=1536"),
    *("model.config.num_attention_heads=8", "model.config.num_key_value_heads=8"),
]
"""27 million parameters, for which training keeps 440 MB."""


@pytest.fixture
def in_group(tmp_path):
    """Return a function that runs a command in a live control group of so many bytes; the group is removed again."""
    groups = Path("/sys/fs/cgroup")
    is_second = (groups / "cgroup.controllers").exists()
    group = (groups if is_second else groups / "memory") / f"holdfast-test-{os.getpid()}"
    limit = group / ("memory.max" if is_second else "memory.limit_in_bytes")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")

    def run_within(num_bytes, *arguments):
        try:
            limit.write_text(str(num_bytes))
        except OSError as error:
            pytest.skip(f"no limit of memory can be set for a control group here: {error}")
        return subprocess.run(
            [sys.executable, "-m", "application", *arguments],
            cwd=tmp_path,
            env=environment(),
            text=True,
            capture_output=True,
            timeout=280,
            check=False,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )

    yield run_within
    group.rmdir()


def test_in_a_control_group_a_model_is_refused(tmp_path, in_group):
    """3 billion parameters in a live group of 2 GiB end with 2 before anything is tokenized, and have a story."""
    process = in_group(2 << 30, "train", *tiny(corpus(tmp_path), *THREE_BILLION))
    assert process.returncode == 2, process.stderr
    assert "its control group allows 2.0 GiB of memory: no setting makes it fit" in process.stderr
    assert not (tmp_path / "cache").exists()
    told = run_here("explain", "runs/default", cwd=tmp_path)
    assert told.returncode == 0
    assert "its control group allows 2.0 GiB of memory" in told.stdout


@pytest.mark.slow
def test_in_a_control_group_what_fits_is_trained(tmp_path, in_group):
    """A small model trains to its end in a live group of 2 GiB, and nothing is said of memory."""
    process = in_group(2 << 30, "train", *tiny(corpus(tmp_path), "run.budget.steps=5"))
    assert process.returncode == 0, process.stderr
    assert "memory is short" not in process.stderr
    assert json.loads((tmp_path / "runs/default/run.json").read_text())["start"]["phase"] == "training"


@pytest.mark.slow
def test_what_nearly_fills_its_control_group_is_told_before_and_after(tmp_path, in_group):
    """A run that the kernel kills for its memory has said before that memory is short, and `explain` says so after."""
    process = in_group(560 * 10**6, "train", *tiny(corpus(tmp_path), *TIGHT, "evaluation.every=1000"))
    assert process.returncode == -9, process.stderr
    assert "memory is short: training the model takes 4" in process.stderr
    told = run_here("explain", "runs/default", cwd=tmp_path)
    assert told.returncode == 0
    assert "most likely a lack of memory (dmesg reports it), as training the model takes 4" in told.stdout
    assert "its control group allows 534.1 MiB of memory" in told.stdout


def test_a_giant_is_refused_before_anything_is_read_or_built(tmp_path, monkeypatch):
    """170 billion parameters end with 2 and one sentence with both figures, without a byte of data or a parameter."""
    data, built = corpus(tmp_path), []
    monkeypatch.setattr(torch.nn.Module, "register_parameter", lambda *given: built.append(given))
    with opened_files() as opened:
        process = run_here("train", *tiny(data, *GIANT), cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert process.stderr.startswith("error: the model has at least 172 billion parameters")
    assert "no setting makes it fit" in process.stderr
    assert (built, str(data) in opened, (tmp_path / "cache").exists()) == ([], False, False)
    told = run_here("explain", "runs/default", cwd=tmp_path)
    assert told.returncode == 0
    assert "172 billion parameters" in told.stdout


def test_under_a_limit_of_its_address_space_a_model_is_refused(tmp_path):
    """3 billion parameters under RLIMIT_AS of 2 GB end with 2 and a sentence that names that limit."""
    command = [sys.executable, "-m", "application", "train", *tiny(corpus(tmp_path), *THREE_BILLION)]
    process = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment() | {"OPENBLAS_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * 10**9, 2 * 10**9)),
    )
    assert process.returncode == 2, process.stderr
    assert "RLIMIT_AS is 1.9 GiB" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("kind", ["huggingface", "decoder"])
def test_a_model_folder_that_is_too_large_is_refused(tmp_path, kind):
    """The config.json of a model folder is enough to know: no weights are looked for."""
    fields = {"model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 40, "intermediate_size": 65536}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({**fields, "num_attention_heads": 128}))
    settings = [setting for setting in tiny(corpus(tmp_path)) if not setting.startswith("model.")]
    process = run_here("train", *settings, f"model.kind={kind}", "model.path=./model", cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "the model has at least" in process.stderr


def test_a_family_that_only_its_own_code_can_count_is_counted_without_memory(tmp_path):
    """A shape that the settings do not tell by themselves is counted where its tensors take no memory, then refused."""
    config = "model.config={model_type: gpt_neox, hidden_size: 16384, num_hidden_layers: 40, intermediate_size: 65536}"
    settings = [setting for setting in tiny(corpus(tmp_path)) if not setting.startswith("model.")]
    process = run_here("train", *settings, config, cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "the model has at least 1" in process.stderr
    assert "prepared" not in process.stderr


def test_a_batch_whose_ids_alone_are_too_many_is_refused(tmp_path):
    """A batch of 10^12 rows ends with 2 and one sentence before its memory is asked for."""
    process = run_here("train", *tiny(corpus(tmp_path), "optimizer.batch_size=1000000000000"), cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "optimizer.batch_size is 1,000,000,000,000, but the ids of at most " in process.stderr


def test_a_learning_rate_whose_update_has_no_finite_square_is_refused(tmp_path):
    """A learning rate of 1e38 ends with 2 and one sentence, not with steps that are no numbers."""
    process = run_here("train", *tiny(corpus(tmp_path), "optimizer.learning_rate=1e38"), cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "optimizer.learning_rate" in process.stderr
    assert "1e+38" in process.stderr
    assert not (tmp_path / "runs").exists()
