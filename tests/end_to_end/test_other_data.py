"""A trained model is measured on any data, not only on what its run held out."""

from __future__ import annotations

import json

import pytest

from holdfast.domain.data.holdout import Holdout
from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

RUN = "runs/default"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a run, and write what it held out, under another field's name too; its own data are gone then."""
    home = tmp_path_factory.mktemp("other")
    path = corpus(home)
    process = run_here("train", *tiny(path, SAME_RHYTHM, "run.budget.steps=10", "run.seed=7"), cwd=home)
    assert process.returncode == 0, process.stderr
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    held = [text for text in texts if Holdout(0.1, 7).holds_text(text)]
    assert 3 < len(held) < 30
    (home / "held.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in held))
    (home / "body.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in held))
    own = run_here("evaluate", RUN, cwd=home)
    path.unlink()
    (home / "own.txt").write_text(own.stdout)
    return home


def figures(process):
    """Return what ``evaluate`` printed behind the checkpoint's name."""
    assert process.returncode == 0, process.stderr
    return process.stdout.split(" · ")[1:]


def test_all_documents_of_other_data_are_measured(home):
    """The documents that a run held out give the figures of the run's own evaluation, given as other data."""
    own = (home / "own.txt").read_text().split(" · ")[1:]
    process = run_here("evaluate", RUN, "--data", "held.jsonl", cwd=home)
    assert figures(process) == own
    assert "not all" not in process.stderr
    assert figures(run_here("evaluate", RUN, "--data=body.jsonl", "data.text_field=body", cwd=home)) == own
    assert figures(run_here("evaluate", RUN, "data.kind=files", "data.path=held.jsonl", cwd=home)) == own
    assert run_here("evaluate", RUN, cwd=home).returncode != 0  # without them


def test_what_a_folder_of_other_data_holds_and_is_not_measured_is_told(home):
    """Files that the evaluation leaves out are named, as those of training are."""
    (home / "more").mkdir()
    (home / "more" / "held.jsonl").write_bytes((home / "held.jsonl").read_bytes())
    (home / "more" / "README.md").write_text("a card")
    process = run_here("evaluate", RUN, "--data", "more", cwd=home)
    assert figures(process) == (home / "own.txt").read_text().split(" · ")[1:]
    assert "1 file in more is plain text beside records and not read: README.md" in process.stderr


def test_several_files_are_measured_together_and_a_limit_is_told(home):
    """More files are more tokens, and tokens that evaluation.max_tokens leaves out are told."""
    (home / "twice.jsonl").write_bytes((home / "held.jsonl").read_bytes())
    one, two = (
        int(figures(run_here("evaluate", RUN, *data, cwd=home))[2].split()[0].replace(",", ""))
        for data in (["--data", "held.jsonl"], ["--data", "held.jsonl", "--data", "twice.jsonl"])
    )
    assert two == pytest.approx(2 * one, abs=3)  # where a row begins, its first token is no target
    cut = run_here("evaluate", RUN, "--data", "held.jsonl", "evaluation.max_tokens=128", cwd=home)
    assert int(figures(cut)[2].split()[0].replace(",", "")) <= 128
    assert "evaluation.max_tokens=N measures more" in cut.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--data", "held.jsonl", "model.kind=decoder"], 2, "cannot change model.kind=decoder"),
        (["--data", "held.jsonl", "data.holdout=0.5"], 2, "data.holdout has no effect here"),
        (["--data", "held.jsonl", "data.text_fild=a"], 2, "text_field"),
        (["--data", "nowhere.jsonl"], 3, "nowhere.jsonl"),
        (["--data", "body.jsonl"], 3, "'body'"),
    ],
)
def test_what_cannot_be_measured_on_is_one_sentence(home, arguments, code, named):
    """A setting that is not of the data, and data that are not there or hold no text, are told with their code."""
    process = run_here("evaluate", RUN, *arguments, cwd=home)
    assert process.returncode == code, process.stderr
    assert named in process.stderr
    assert "Traceback" not in process.stderr
