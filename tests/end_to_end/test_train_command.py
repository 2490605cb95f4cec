"""One command trains, and what it leaves behind is of use."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.support.command_line import SAME_RHYTHM, corpus, losses, run_here, tiny, try_next

SAME_TEXT = """
from holdfast.ports.transform import Transform

class Same(Transform):
    def __call__(self, text):
        return text

    def fingerprint(self):
        return "same 1"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train one small run and return its home and the finished process."""
    home = tmp_path_factory.mktemp("trained")
    return home, run_here("train", *tiny(corpus(home), SAME_RHYTHM), cwd=home)


def test_training_ends_well_and_says_what_to_try_next(trained):
    """A run exits with 0, shows a sample, its checkpoint and the next commands."""
    home, process = trained
    assert process.returncode == 0, process.stderr
    assert "sample:" in process.stdout
    assert "runs/default/checkpoints/checkpoint-30" in process.stdout
    assert "python -m application generate runs/default" in process.stdout
    assert sorted(losses(home / "runs/default")) == list(range(1, 31))


def test_what_a_run_says_to_try_next_works(trained):
    """Each command that a run prints at its end ends well as it was printed."""
    home, process = trained
    generated, evaluated = try_next(process.stdout, cwd=home)
    assert "--prompt" not in process.stdout.partition("try next")[2]
    assert generated.stdout.strip()
    assert "bits per byte" in evaluated.stdout


@pytest.mark.parametrize(
    "more",
    [
        ["model.config={model_type: gpt2, n_embd: 32, n_layer: 1, n_head: 2, n_positions: 64}"],
        ["sample.prompt=-it's\n$HOME `x`", "run.dir=my runs"],
        ["model.kind=decoder", "model.max_position_embeddings=64", "model.hidden_size=48"],
    ],
    ids=["few positions", "a prompt that a shell would read", "few positions of a decoder"],
)
def test_a_run_with_default_lengths_ends_well_and_so_does_what_it_says_to_try(tmp_path, more):
    """Fewer positions than the default lengths, or a prompt that needs quotes, spoil neither a run nor what is next."""
    short = ("run.budget.steps=1", "evaluation.at_start=false", "sample.max_new_tokens=96")
    settings = tiny(corpus(tmp_path), *short, *more)
    if more[0].startswith("model."):
        settings = [setting for setting in settings if not setting.startswith("model.config.")]
    process = run_here("train", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    generated, _ = try_next(process.stdout, cwd=tmp_path)
    assert ("positions" in generated.stderr) == ("positions" in process.stdout)


def test_a_run_by_a_plug_in_says_to_trust_it_in_what_to_try(tmp_path, monkeypatch):
    """What runs code of another package has to be trusted again: the commands to try say so, and end well."""
    package = tmp_path / "packages/same_text-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: same-text\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[holdfast.transform]\nsame = same_text:Same\n")
    (package.parent / "same_text.py").write_text(SAME_TEXT)
    monkeypatch.syspath_prepend(package.parent)
    settings = tiny(corpus(tmp_path), "data.transforms=[{kind: same}]", "run.budget.steps=1")
    process = run_here("train", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("--trust data.transforms=same") == 2
    try_next(process.stdout, cwd=tmp_path)


def test_a_run_that_holds_nothing_out_proposes_no_evaluation(tmp_path):
    """Where no document was held out, ``evaluate`` could not end well and is not said to try."""
    process = run_here("train", *tiny(corpus(tmp_path), "data.holdout=0", "run.budget.steps=1"), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [process.args[0] for process in try_next(process.stdout, cwd=tmp_path)] == ["generate"]


def test_the_run_folder_holds_what_is_documented(trained):
    """Settings, metrics, events and the last three checkpoints stand in the run folder."""
    folder = trained[0] / "runs/default"
    names = {path.name for path in folder.iterdir()}
    assert {"run.json", "metrics.jsonl", "events.jsonl", "checkpoints"} <= names
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "checkpoint-20",
        "checkpoint-25",
        "checkpoint-30",
    }
    record = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1])
    assert {"step", "tokens", "loss", "lr", "grad_norm", "tokens_per_second", "data_wait_seconds", "memory_bytes"} <= (
        record.keys()
    )
    events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events[0] == "RunStarted"
    assert events[-1] == "RunFinished"
    assert events.count("CheckpointSaved") == 6


def test_the_model_learned(trained):
    """Bits per byte on held-out documents fall."""
    lines = (trained[0] / "runs/default/metrics.jsonl").read_text().splitlines()
    figures = [record["eval_bits_per_byte"] for record in map(json.loads, lines) if "eval_bits_per_byte" in record]
    assert figures[-1] < figures[0] - 0.3


def test_transformers_reproduces_the_evaluation(trained, monkeypatch):
    """``from_pretrained`` loads the checkpoint folder as it is and gives the run's evaluation loss within 1e-3."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from holdfast.bootstrap.operations.trained_model import open_trained

    home, _ = trained
    monkeypatch.chdir(home)
    checkpoint = home / "runs/default/checkpoints/checkpoint-30"
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    opened = open_trained(Path("runs/default"))
    nats, targets = 0.0, 0
    for batch in opened.held_out_batches():
        with torch.no_grad():
            logits = model(
                input_ids=torch.from_numpy(batch.input_ids),
                position_ids=torch.from_numpy(batch.position_ids),
                use_cache=False,
            ).logits
        chances = logits.log_softmax(-1)[:, :-1].gather(-1, torch.from_numpy(batch.input_ids)[:, 1:, None])[..., 0]
        nats -= float(chances[torch.from_numpy(batch.loss_mask)[:, 1:]].sum())
        targets += batch.num_targets
    lines = (home / "runs/default/metrics.jsonl").read_text().splitlines()
    recorded = [json.loads(line)["eval_loss"] for line in lines if "eval_loss" in line][-1]
    assert math.isclose(nats / targets, recorded, abs_tol=1e-3)
    assert math.isclose(opened.evaluate().loss, recorded, rel_tol=1e-6)
    text = "the model reads"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_trained_run_generates(trained):
    """``generate`` continues a prompt, the same way for the same seed."""
    home, _ = trained
    command = ("generate", "runs/default", "--prompt", "the model", "--max-new-tokens", "12")
    first, second = (run_here(*command, cwd=home) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("the model")
    assert first.stdout == second.stdout


def test_a_finished_run_says_so(trained):
    """The same command on a finished run trains nothing and says how to start another."""
    home, _ = trained
    process = run_here("train", *tiny(home / "corpus.jsonl", SAME_RHYTHM), cwd=home)
    assert process.returncode == 0, process.stderr
    assert "is finished at step 30" in process.stdout
    assert "--fresh" in process.stdout
    assert "checkpoint: runs/default/checkpoints/checkpoint-30 " in process.stdout
    assert len(losses(home / "runs/default")) == 30


def test_fresh_sets_the_old_run_aside(tmp_path):
    """``--fresh`` moves the old folder away whole and begins anew."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=2", "evaluation.at_start=false")
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    marker = tmp_path / "runs/default/mine.txt"
    marker.write_text("keep")
    process = run_here("train", "--fresh", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    aside = [path for path in (tmp_path / "runs").iterdir() if path.name != "default"]
    assert [(path / "mine.txt").read_text() for path in aside] == ["keep"]
    assert not marker.exists()


def test_another_model_shape_does_not_continue_the_run(tmp_path):
    """A change that makes it another run is refused with the setting's name, and nothing is touched."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=2", "evaluation.at_start=false")
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    before = (tmp_path / "runs/default/run.json").read_bytes()
    process = run_here("train", *settings, "model.config.hidden_size=64", cwd=tmp_path)
    assert process.returncode == 2
    assert "model.config.hidden_size" in process.stderr
    assert (tmp_path / "runs/default/run.json").read_bytes() == before
