"""The average of the weights in a run (``optimizer.ema``), and the mean of checkpoints (``average``)."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

RUN = "runs/default"
WEIGHTS = "model.safetensors"


def train(home, *more, budget=20):
    rhythm = (SAME_RHYTHM, "evaluation.every=5", "state_store.keep=10", f"run.budget.steps={budget}")
    process = run_here("train", *tiny(corpus(home), *rhythm, *more), cwd=home)
    assert process.returncode == 0, process.stderr
    return process


def result(home, *arguments):
    """Return the JSON that a command prints."""
    process = run_here(*arguments, "--json", cwd=home)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def checkpoint(home, step):
    return home / RUN / f"checkpoints/checkpoint-{step}"


def measured(home, step):
    return json.loads((checkpoint(home, step) / "MANIFEST.json").read_text())["evaluation_loss"]


@pytest.fixture(scope="module")
def with_ema(tmp_path_factory):
    """Train a run that averages its weights; return its home."""
    home = tmp_path_factory.mktemp("ema")
    train(home, "optimizer.ema.decay=0.9")
    return home


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Train a run without an average; return its home."""
    home = tmp_path_factory.mktemp("plain")
    train(home)
    return home


def test_commands_use_the_average_unless_the_trained_weights_are_chosen(with_ema):
    """``evaluate`` gives the loss that the run measured, of the average, and with ``--trained`` that of the weights."""
    averaged, trained = result(with_ema, "evaluate", RUN), result(with_ema, "evaluate", RUN, "--trained")
    assert averaged["weights"] == "average"
    assert averaged["loss"] == pytest.approx(measured(with_ema, 20), abs=1e-6)
    assert trained["weights"] == "trained"
    assert abs(trained["loss"] - averaged["loss"]) > 1e-3


def test_an_export_has_the_weights_that_were_chosen(with_ema, tmp_path):
    """``export`` writes the average, or with ``--trained`` the trained weights, as ``model.safetensors``."""
    for more, file in (([], "ema.safetensors"), (["--trained"], WEIGHTS)):
        folder = tmp_path / file
        assert run_here("export", RUN, str(folder), *more, cwd=with_ema).returncode == 0
        assert (folder / WEIGHTS).read_bytes() == (checkpoint(with_ema, 20) / file).read_bytes()
        assert sorted(path.suffix for path in folder.glob("*.safetensors")) == [".safetensors"]


def test_a_text_is_that_of_the_average(with_ema):
    """``generate`` writes with the average, which is another text than that of the trained weights."""
    texts = [
        run_here("generate", RUN, "--temperature=1", "--max-new-tokens=40", *more, cwd=with_ema).stdout
        for more in ([], [], ["--trained"])
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_stopped_run_continues_the_average_bit_for_bit(with_ema, tmp_path):
    """A run in two parts ends with the same average as one that went on, in the same bytes."""
    constant = ("optimizer.schedule.kind=constant", "optimizer.ema.decay=0.9")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for home in (whole, parts):
        home.mkdir()
    train(whole, *constant)
    train(parts, *constant, budget=10)
    train(parts, *constant)
    for file in (WEIGHTS, "ema.safetensors", "optimizer.safetensors"):
        assert (checkpoint(parts, 20) / file).read_bytes() == (checkpoint(whole, 20) / file).read_bytes()


def test_an_average_that_is_begun_later_is_told(plain, tmp_path):
    """A run that continues with ``optimizer.ema`` says that the setting changed, and has an average from then on."""
    home = tmp_path / "home"
    shutil.copytree(plain, home)
    process = train(home, "optimizer.ema.decay=0.9", budget=25)
    assert "changed: optimizer.ema" in process.stderr
    assert not (checkpoint(home, 20) / "ema.safetensors").exists()
    assert (checkpoint(home, 25) / "ema.safetensors").exists()


def test_deepspeed_cannot_average(plain):
    """``optimizer.ema`` with DeepSpeed ends with 2 and one sentence that names the remedy."""
    settings = tiny(corpus(plain), "optimizer.kind=deepspeed", "optimizer.ema.decay=0.9")
    process = run_here("train", *settings, cwd=plain)
    assert process.returncode == 2
    assert "optimizer.ema" in process.stderr
    assert "optimizer.kind=accelerate only" in process.stderr


def test_the_mean_of_the_last_checkpoints_is_a_checkpoint_of_its_own(plain):
    """``average`` writes the mean in fp64, names its origin in the manifest, and says the losses before and after."""
    report = result(plain, "average", RUN, "--last", "3")
    assert [member["step"] for member in report["of"]] == [10, 15, 20]
    assert report["before"]["loss"] == pytest.approx(measured(plain, 20), abs=1e-6)
    folder = plain / RUN / "averages/steps-10-15-20"
    assert report["average"] == str(folder)
    members = [load_file(checkpoint(plain, step) / WEIGHTS) for step in (10, 15, 20)]
    for name, mean in load_file(folder / WEIGHTS).items():
        expected = torch.stack([member[name].double() for member in members]).mean(0).float()
        assert torch.equal(mean, expected), name
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    assert manifest["reason"] == "average"
    assert manifest["evaluation_loss"] == report["after"]["loss"]
    origin = manifest["provenance"]
    assert [each["step"] for each in origin["of"]] == [10, 15, 20]
    assert [each["share"] for each in origin["of"]] == [1 / 3] * 3
    commits = [(checkpoint(plain, step) / "COMMIT").read_text().strip() for step in (10, 15, 20)]
    assert [each["commit"] for each in origin["of"]] == commits
    assert origin["loss_before"] == report["before"]["loss"]


def test_commands_take_an_average_by_its_folder(plain, tmp_path):
    """``evaluate``, ``generate``, ``inspect``, ``export`` and transformers take the folder of an average."""
    folder = tmp_path / "mean"
    report = result(plain, "average", RUN, "--steps", "5,20", "--output", str(folder))
    assert result(plain, "evaluate", str(folder))["loss"] == pytest.approx(report["after"]["loss"], abs=1e-6)
    assert run_here("generate", str(folder), "--max-new-tokens=4", cwd=plain).returncode == 0
    inspected = run_here("inspect", str(folder), cwd=plain)
    assert inspected.returncode == 0, inspected.stderr
    assert "mean of 5, 20" in inspected.stdout
    assert run_here("export", str(folder), str(tmp_path / "model"), cwd=plain).returncode == 0
    for path in (folder, tmp_path / "model"):
        model = AutoModelForCausalLM.from_pretrained(path)
        assert torch.equal(model.lm_head.weight, load_file(folder / WEIGHTS)["model.embed_tokens.weight"])


def test_weights_are_relative(plain, tmp_path):
    """``--weights`` are the shares by ascending step, divided by their sum."""
    folder = tmp_path / "mean"
    result(plain, "average", RUN, "--steps=20,5", "--weights=1,3", "--no-evaluation", "--output", str(folder))
    first, last = (load_file(checkpoint(plain, step) / WEIGHTS) for step in (5, 20))
    for name, mean in load_file(folder / WEIGHTS).items():
        expected = (0.25 * first[name].double() + 0.75 * last[name].double()).float()
        torch.testing.assert_close(mean, expected, rtol=1e-7, atol=0)


def test_averages_of_weights_are_averaged_too(with_ema, tmp_path):
    """In a run with ``optimizer.ema`` the averages are averaged, or with ``--trained`` the weights."""
    for more, file in (([], "ema.safetensors"), (["--trained"], WEIGHTS)):
        folder = tmp_path / file
        result(with_ema, "average", RUN, "--last=2", "--no-evaluation", "--output", str(folder), *more)
        members = [load_file(checkpoint(with_ema, step) / file) for step in (15, 20)]
        for name, mean in load_file(folder / WEIGHTS).items():
            expected = torch.stack([member[name].double() for member in members]).mean(0).float()
            torch.testing.assert_close(mean, expected, rtol=1e-7, atol=0)
        assert not (folder / "ema.safetensors").exists()


def test_adapters_are_averaged(tmp_path):
    """The average of a run with LoRA holds adapters alone, is evaluated, and is exported merged."""
    train(tmp_path, "model.lora.rank=4", budget=10)
    report = result(tmp_path, "average", RUN, "--last=2")
    folder = tmp_path / RUN / "averages/steps-5-10"
    assert report["after"]["loss"] > 0
    assert (folder / "adapter_model.safetensors").exists()
    merged = run_here("export", str(folder), str(tmp_path / "model"), "--merged", cwd=tmp_path)
    assert merged.returncode == 0, merged.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--last", "9"), 4, "holds 4 checkpoints, and 9 were to be averaged"),
        (("--steps", "5,7"), 4, "holds no checkpoint of step 7: it holds 5, 10, 15, 20"),
        (("--last", "2", "--weights", "1,2,3"), 2, "there are 3 weights for 2 checkpoints"),
        (("--last", "2", "--output", "taken"), 2, "already exists"),
    ],
)
def test_a_wrong_choice_is_one_sentence(plain, arguments, code, words):
    """Missing checkpoints end with 4, and weights or folders that do not fit with 2."""
    (plain / "taken").mkdir(exist_ok=True)
    process = run_here("average", RUN, *arguments, cwd=plain)
    assert process.returncode == code
    assert words in process.stderr


def test_a_damaged_checkpoint_is_not_averaged(plain, tmp_path):
    """A checkpoint whose bytes changed ends ``average`` with 4, names it, and leaves no folder."""
    home = tmp_path / "home"
    shutil.copytree(plain, home)
    path = checkpoint(home, 15) / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    process = run_here("average", RUN, "--last=3", "--output=mean", "--no-evaluation", cwd=home)
    assert process.returncode == 4
    assert "checkpoint-15" in process.stderr
    assert [path.name for path in home.iterdir() if "mean" in path.name] == []


def test_a_full_disk_leaves_no_folder(plain, tmp_path, monkeypatch):
    """An average that cannot be written ends with 4 and leaves neither the folder nor a draft."""
    from holdfast.adapters.shared.files.file_operations import FileOperations

    def fail(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(FileOperations, "write_chunks", fail)
    process = run_here("average", RUN, "--last=2", "--no-evaluation", "--output", str(tmp_path / "mean"), cwd=plain)
    assert process.returncode == 4
    assert "no space left on device" in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_encrypted_run_needs_a_place_for_its_average(tmp_path, monkeypatch):
    """The average of an encrypted run is not encrypted, so it is written only where the user names a folder."""
    monkeypatch.setenv("HOLDFAST_TEST_KEY", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
    train(tmp_path, "state_store.encryption.key_from=env:HOLDFAST_TEST_KEY", budget=10)
    refused = run_here("average", RUN, "--last=2", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--output" in refused.stderr
    report = result(tmp_path, "average", RUN, "--last=2", "--output=mean")
    assert result(tmp_path, "evaluate", "mean")["loss"] == pytest.approx(report["after"]["loss"], abs=1e-6)
