"""`tune`: a search with two workers, its files and its mistakes, and the learning-rate finder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import corpus, next_commands, run_here, tiny

SPACE = "optimizer.learning_rate: {low: 1e-4, high: 1e-1, log: true}\noptimizer.weight_decay: {choices: [0, 0.1]}\n"
STUDY = Path("runs/search")


def words(*more):
    return tiny(
        Path("corpus.jsonl"),
        "run.name=search",
        "run.budget.steps=4",
        "evaluation.every=2",
        "evaluation.max_tokens=512",
        "data.sequence_length=16",
        "model.config.num_hidden_layers=1",
        *more,
    )


def tune(home, *more, space=SPACE):
    (home / "space.yaml").write_text(space)
    return run_here("tune", "--space", "space.yaml", *words(*more), cwd=home)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a search of two trials by two workers."""
    folder = tmp_path_factory.mktemp("home")
    corpus(folder)
    process = tune(folder, "--trials", "2", "--workers", "2")
    assert process.returncode == 0, process.stdout + process.stderr
    (folder / "output.txt").write_text(process.stdout)
    return folder


def test_a_search_ends_with_its_best_trial(home):
    """The summary names the trials and the best one, whose settings and whose commands to try next are there."""
    output = (home / "output.txt").read_text()
    assert "trials:   2 (2 complete)" in output
    assert "settings: runs/search/best.yaml" in output
    assert "at most 2 trials at once" in output
    facts = json.loads(tune(home, "--trials", "2", "--json").stdout)
    values = {trial["number"]: trial["value"] for trial in facts["trials"]}
    assert facts["best"]["value"] == min(values.values())
    assert facts["parallel"] == 2
    assert all(Path(home / trial["run"] / "run.json").exists() for trial in facts["trials"])
    assert "error" not in output


def test_the_best_settings_are_those_of_the_best_trial(home, monkeypatch):
    """The file has the settings of the best trial, and a run of it is not called as a trial."""
    monkeypatch.chdir(home)
    best = json.loads(tune(home, "--trials", "2", "--json").stdout)["best"]
    found = load_settings([STUDY / "best.yaml"], [], {}).settings
    recorded = json.loads((home / best["run"] / "run.json").read_text())["settings"]
    assert found.run.name == "search-best"
    assert found.optimizer.learning_rate == best["parameters"]["optimizer.learning_rate"]
    assert found.optimizer.learning_rate == recorded["optimizer"]["learning_rate"]
    assert found.optimizer.weight_decay == float(best["parameters"]["optimizer.weight_decay"])
    assert f"# trial {best['number']} of runs/search" in (home / STUDY / "best.yaml").read_text()


def test_a_finished_search_trains_nothing(home):
    """The same command again trains nothing, and prints the same trials."""
    before = {path: path.stat().st_mtime_ns for path in (home / STUDY).glob("trial-*/metrics.jsonl")}
    process = tune(home, "--trials", "2")
    assert process.returncode == 0, process.stderr
    assert "2 trials done" in process.stdout
    assert before == {path: path.stat().st_mtime_ns for path in (home / STUDY).glob("trial-*/metrics.jsonl")}


def test_the_report_shows_the_search(home):
    """`report` on the folder of a search writes its page, or its data, and has no Markdown."""
    page = run_here("report", "runs/search", cwd=home)
    assert page.stdout == "report: runs/search/report.html\n"
    assert (home / STUDY / "report.html").read_text().count("<svg") == 3
    assert len(json.loads(run_here("report", "runs/search", "--json", cwd=home).stdout)["trials"]) == 2
    refused = run_here("report", "runs/search", "--markdown", cwd=home)
    assert refused.returncode == 2
    assert "leave --markdown out" in refused.stderr


def test_the_trials_are_ordinary_runs(home):
    """`runs` lists the trials with the settings in which they differ."""
    listed = json.loads(run_here("runs", "runs/search", "--json", cwd=home).stdout)
    assert sorted(entry["name"] for entry in listed["runs"]) == ["trial-0000", "trial-0001"]
    assert {"optimizer.learning_rate"} <= listed["runs"][0]["settings"].keys()


@pytest.mark.parametrize(
    ("more", "space", "sentence"),
    [
        (["--trials", "3", "optimizer.clip=0.5"], SPACE, "optimizer.clip was 1.0 when the study in runs/search began"),
        (["--trials", "3", "tune.sampler=random"], SPACE, "tune.sampler was 'tpe' when the study"),
        (["--trials", "3", "tune.parallel=5"], SPACE, "tune.parallel is 5, but the study in runs/search began with 2"),
        (
            ["--trials", "3"],
            "optimizer.clip: {low: 1, high: 2}",
            "the values of optimizer.clip in the space were others",
        ),
    ],
)
def test_another_search_is_refused(home, more, space, sentence):
    """A command that would change the search in the folder names the first difference and trains nothing."""
    process = tune(home, *more, space=space)
    assert process.returncode == 2
    assert sentence in process.stderr
    assert "--fresh" in process.stderr


@pytest.mark.parametrize(
    ("more", "space", "sentence"),
    [
        ([], SPACE, "the study has no end: give --trials or --tokens"),
        (["--trials", "1", "data.holdout=0"], SPACE, "data.holdout is 0, so no trial can be evaluated"),
        (["--trials", "1", "evaluation.every=0"], SPACE, "evaluation.every is 0: set it to a number of steps"),
        (
            ["--trials", "1", "tune.sampler=grid"],
            SPACE,
            "optimizer.learning_rate is a range: give it choices or a step",
        ),
        (["--trials", "1", "tune.pruner_options.x=1"], SPACE, "tune.pruner_options do not fit tune.pruner=median"),
        (["--trials", "1"], "tokenizer.vocabulary_size: {low: 300, high: 400}", "set tune.metric=eval_bits_per_byte"),
        (["--trials", "1"], "optimizer.clips: {low: 300, high: 400}", "did you mean optimizer.clip?"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_trained(tmp_path, more, space, sentence):
    """Each mistake is one sentence with exit code 2, and no trial begins."""
    corpus(tmp_path)
    process = tune(tmp_path, *more, space=space)
    assert process.returncode == 2, process.stdout
    assert sentence in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert not (tmp_path / STUDY).exists()


def test_without_optuna_there_is_one_sentence(tmp_path, monkeypatch):
    """A machine without Optuna is told which package to install."""
    corpus(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "holdfast.adapters.study.optuna", raising=False)
    process = tune(tmp_path, "--trials", "1")
    assert process.returncode == 2
    assert process.stderr == 'error: tune needs another package: pip install "holdfast-lm[tune]"\n'


def test_the_folder_of_a_run_is_no_study(tmp_path):
    """A search is not begun in the folder of a run."""
    corpus(tmp_path)
    (tmp_path / STUDY).mkdir(parents=True)
    (tmp_path / STUDY / "run.json").write_text("{}")
    process = tune(tmp_path, "--trials", "1")
    assert process.returncode == 2
    assert "runs/search is the folder of a run: give the study another name with run.name" in process.stderr


def test_failing_trials_end_the_search(tmp_path):
    """Trials that only the model refuses have failed with its sentence, and some of them in a row end the search."""
    corpus(tmp_path)
    space = "model.config.num_key_value_heads: {choices: [3]}\n"
    process = tune(tmp_path, "--trials", "5", "tune.most_failures=1", space=space)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "trial 0 failed: " in process.stdout
    assert "1 trial failed in a row, and trial 0 says: " in process.stderr
    assert "Traceback" not in process.stderr


def test_a_learning_rate_is_found(tmp_path):
    """The test prints its curve and a suggestion within its bounds, and the same command prints the same again."""
    corpus(tmp_path)
    (tmp_path / "ft.yaml").write_text("optimizer: {weight_decay: 0.0}\n")
    command = ["tune", "--find-lr", "--config", "ft.yaml", "--low", "1e-5", "--high", "3", "--steps", "40", *words()]
    process = run_here(*command, cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "suggestion:  optimizer.learning_rate=" in process.stdout
    assert process.stdout.count("#") > 40
    (after,) = next_commands(process.stdout)
    assert after[:3] == ["train", "--config", "ft.yaml"]
    assert {word for word in words() if "learning_rate" not in word} < set(after)
    again = run_here(*command, "--json", cwd=tmp_path)
    figures = json.loads(again.stdout)
    assert 1e-5 < figures["suggestion"] < 3
    assert f"optimizer.learning_rate={figures['suggestion']:.2g}" in process.stdout
    other = run_here(*command, "run.seed=7", cwd=tmp_path)
    assert other.returncode == 2
    assert "run.seed was 1234 in the test of runs/search-find-lr and is 7 now" in other.stderr
    assert "error" not in (tmp_path / "runs/search-find-lr/events.jsonl").read_text().lower()
