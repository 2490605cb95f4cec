"""Showing that a configuration resumes exactly with `verify-resume`, as a user does."""

from __future__ import annotations

import json
import signal

import psutil
import pytest

from holdfast.bootstrap.cli.main import main
from tests.support.command_line import ROOT, corpus, run, start, tiny, wait_until

PLUGIN = """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from holdfast.domain.events import RunStarted


def perturb(optimizer, args, kwargs):
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].add_(1e-3)


def subscribe(bus, inbox):
    def on_start(event):
        if event.progress.step:
            register_optimizer_step_post_hook(perturb)

    bus.subscribe(RunStarted, on_start)
    subscribe.kept = on_start
"""


@pytest.fixture
def perturbing(tmp_path):
    """Install a handler that changes a weight a little behind each step of a resumed run."""
    package = tmp_path / "packages"
    metadata = package / "perturbing-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: perturbing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[holdfast.handler]\nperturbing = perturbing:subscribe\n")
    (package / "perturbing.py").write_text(PLUGIN)
    return package


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "more"), [(1, []), (2, ["distributed.processes=2", "optimizer.sharding=fsdp2"])])
def test_a_configuration_that_resumes_exactly_is_told_so(tmp_path, ranks, more):
    """The short run, killed and resumed, is the undisturbed one to the bit, and neither leaves anything behind."""
    settings = tiny(corpus(tmp_path), *more)
    home = tmp_path / "home"
    home.mkdir()
    told = run("verify-resume", *settings, "--json", cwd=home, timeout=290)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert (report["verdict"], report["promises"], report["steps"]) == ("bit for bit", "bitwise", 6)
    assert (report["killed_after"], report["saved"], report["resumed_from"]) == (4, 2, 2)
    assert report["tensors"] > 20
    assert (report["conditions"]["device"], report["conditions"]["ranks"]) == ("cpu", str(ranks))
    assert list(home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_resume_that_changes_something_is_found(tmp_path, perturbing, monkeypatch):
    """A change behind the resume is named by the first step and tensor that show it, and --keep leaves both runs."""
    settings = tiny(corpus(tmp_path), "handlers=[perturbing]")
    monkeypatch.setattr("tests.support.command_line.ROOT", f"{ROOT}:{perturbing}")
    home = tmp_path / "home"
    home.mkdir()
    told = run("verify-resume", *settings, "--keep", cwd=home, timeout=230)
    assert told.returncode == 4, told.stderr
    assert told.stdout.startswith("different: 6 steps, killed after step 4, resumed from step 2")
    assert "first difference: loss of step 4 is" in told.stdout
    assert "model.safetensors model.embed_tokens.weight" in told.stdout
    (kept,) = home.glob(".verify-resume-*")
    assert {"undisturbed", "killed"} <= {path.name for path in kept.iterdir()}
    assert str(kept) in told.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing(number, code, tmp_path):
    """A signal ends the command and the run that it started, and what they wrote is removed."""
    home = tmp_path / "home"
    home.mkdir()
    process = start("verify-resume", *tiny(corpus(tmp_path)), cwd=home)
    locks = lambda: list(home.glob(".verify-resume-*/undisturbed/LOCK"))  # noqa: E731
    wait_until(locks, process, "no run was started")
    (child,) = psutil.Process(process.pid).children()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert not child.is_running()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("state_store.kind=memory", "state_store.kind is memory"),
        ("distributed.kind=torch", "starts its processes itself"),
        ("run.budget.steps=2", "run.budget.steps is 2"),
    ],
)
def test_what_cannot_be_tried_is_refused(setting, words, tmp_path, capsys, monkeypatch):
    """A configuration that the command cannot compare is refused in one sentence before anything is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["verify-resume", setting]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
