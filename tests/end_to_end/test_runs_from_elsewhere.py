"""Commands that take a run find what its settings name from any folder, also after the project has moved."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest
from transformers import AutoModelForCausalLM

from holdfast.adapters.state_store.manifest import MANIFEST
from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

pytestmark = pytest.mark.slow

GREEDY = ("--temperature", "0", "--max-new-tokens", "6", "--prompt", "the model")
SHORT = (SAME_RHYTHM, "run.budget.steps=4", "state_store.every=2", "evaluation.every=0", "evaluation.at_start=false")


def trained(project, name, *more):
    """Train a run of this name in the folder ``project``, whose settings name places relative to it."""
    own = [word for word in tiny(project / "corpus.jsonl", *SHORT) if not more or not word.startswith("model.config.")]
    process = run_here(
        *("train", *own, f"run.name={name}", "data.path=corpus.jsonl", "run.cache_dir=cache", *more), cwd=project
    )
    assert process.returncode == 0, process.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a project with a base model, adapters that were trained on it, and another base of the same shape."""
    home = tmp_path_factory.mktemp("home") / "project"
    home.mkdir()
    corpus(home)
    trained(home, "plain")
    for step, folder in ((4, "base"), (2, "other")):
        process = run_here("export", "plain", folder, "--unchecked", "--step", str(step), cwd=home)
        assert process.returncode == 0, process.stderr
    trained(home, "lora", "model.path=base", "model.lora.rank=2", "optimizer.learning_rate=3e-2")
    return home


@pytest.fixture
def project(built, tmp_path):
    """Return a copy of the project under another path, as after a move; the original is away meanwhile."""
    place = tmp_path / "moved" / "project"
    shutil.copytree(built, place)
    away = built.rename(built.with_name("away"))
    yield place
    away.rename(built)


def talked(cwd, *words):
    """Return what the chat in the terminal says to one message."""
    before, sys.stdin = sys.stdin, io.StringIO("the model\n")
    try:
        process = run_here("chat", *words, "--terminal", *GREEDY[:4], cwd=cwd)
    finally:
        sys.stdin = before
    assert process.returncode == 0, process.stderr
    return process.stdout.partition("\n")[2]


def measured(cwd, *words):
    """Return the loss that a command finds."""
    process = run_here(*words, "--json", cwd=cwd)
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    return found.get("loss", found.get("loss_before"))


def results(cwd, run, *more):
    """Return what each command that reads a model makes of ``run``."""
    generated = run_here("generate", run, *GREEDY, *more, cwd=cwd)
    assert generated.returncode == 0, generated.stderr
    shutil.rmtree(cwd / "out", ignore_errors=True)
    averaged = run_here("average", run, "--last", "2", "--output", "out/averaged", "--json", *more, cwd=cwd)
    assert averaged.returncode == 0, averaged.stderr
    told = json.loads(averaged.stdout)
    return {
        "generate": generated.stdout,
        "chat": talked(cwd, run, *more),
        "evaluate": measured(cwd, "evaluate", run, *more),
        "average": (told["before"]["loss"], told["after"]["loss"]),
        "of average": measured(cwd, "evaluate", "out/averaged", *more),
        "export": measured(cwd, "export", run, "out/merged", "--merged", *more),
    }


def test_adapters_find_their_base_and_data_from_any_folder(project, tmp_path):
    """From beside the project and from elsewhere each command gives what it gives inside, and no file appears there."""
    inside = results(project, "runs/lora")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert results(project.parent, "project/runs/lora") == inside
    assert results(elsewhere, str(project / "runs/lora")) == inside
    assert {path.name for path in elsewhere.iterdir()} == {"out"}
    assert measured(elsewhere, "evaluate", str(project / "runs/plain")) > 0  # a run without adapters needs its data


def test_a_base_that_is_away_is_named_by_the_user(project, tmp_path):
    """Without its base a run is refused with the way out, and a base of the same bytes is taken from any place."""
    before = run_here("generate", "runs/lora", *GREEDY, cwd=project).stdout
    (project / "base").rename(tmp_path / "kept")
    refused = run_here("generate", "runs/lora", *GREEDY, cwd=project)
    assert refused.returncode == 2
    assert "--base PATH" in refused.stderr
    assert run_here("generate", "runs/lora", *GREEDY, "--base", str(tmp_path / "kept"), cwd=project).stdout == before
    other = run_here("generate", "runs/lora", *GREEDY, "--base", str(project / "other"), cwd=project)
    assert other.returncode == 4
    assert f"belong to other base weights, not those of {project / 'other'}" in other.stderr
    nowhere = run_here("evaluate", "runs/lora", "--base", "./nowhere", cwd=project)
    assert (nowhere.returncode, "--base ./nowhere is no folder" in nowhere.stderr) == (2, True)


@pytest.mark.parametrize("command", ["generate", "evaluate", "chat", "export", "average"])
def test_a_base_without_adapters_is_refused(project, command):
    """The base of a run that trained all weights has no effect, which is said before anything is read."""
    more = {"export": ["out"], "average": ["--last", "2"]}.get(command, [])
    process = run_here(command, "runs/plain", *more, "--base", "base", cwd=project)
    assert process.returncode == 2
    assert "--base base has no effect: runs/plain trained no adapters" in process.stderr


def test_exported_adapters_name_their_base_for_any_folder(project, tmp_path, monkeypatch):
    """The path of the base is absolute, it is said where it stands, and the export loads in another folder."""
    (below := project / "below").mkdir()
    exported = run_here("export", "../runs/lora", "../adapters", "--unchecked", cwd=below)
    assert exported.returncode == 0, exported.stderr
    described = json.loads((project / "adapters/adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(project / "base")
    assert "adapter_config.json (base_model_name_or_path) names the base of these adapters" in exported.stderr
    assert str(project / "base") in exported.stderr
    monkeypatch.chdir(tmp_path)
    below.rmdir()
    assert AutoModelForCausalLM.from_pretrained(project / "adapters") is not None
    monkeypatch.chdir(tmp_path.parent)
    again = run_here("export", str(project / "runs/lora"), str(project / "adapters"), "--unchecked", cwd=tmp_path)
    assert (again.returncode, "already" in again.stdout) == (0, True), again.stderr
    newest = max((project / "runs/lora/checkpoints").iterdir(), key=lambda path: int(path.name.rpartition("-")[2]))
    kept = json.loads((newest / "adapter_config.json").read_text())
    assert kept["base_model_name_or_path"] == "base"  # checkpoints of equal runs are equal, wherever they are
    assert (newest / MANIFEST).is_file()


def test_the_folder_of_training_is_known_if_the_run_is_elsewhere(built, tmp_path):
    """A run folder outside of its project leads back to the base and the data by the folder that it began in."""
    place = tmp_path / "scratch" / "run"
    trained(built, "far", "model.path=base", "model.lora.rank=2", f"run.dir={place}")
    inside = measured(built, "evaluate", str(place))
    assert measured(tmp_path, "evaluate", str(place)) == inside
