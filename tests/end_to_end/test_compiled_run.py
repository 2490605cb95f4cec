import json

import pytest

from tests.support.command_line import corpus, losses, run, tiny


def figures(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_profiled_run_says_where_the_profile_is(tmp_path):
    """profile.steps leaves a trace and a table in the run folder, and one line tells where."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=6", "profile.steps=3:5")
    outcome = run("train", *settings, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    folder = tmp_path / "runs" / "default" / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["steps-3-4.trace.json.gz", "steps-3-4.txt"]
    assert "profile of steps 3 to 4 in runs/default/profile/steps-3-4.txt" in outcome.stderr
    assert "Optimizer.step" in (folder / "steps-3-4.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_compiled_run_that_is_resumed_repeats_itself(tmp_path, monkeypatch):
    """A compiled run that processes with no shared cache of code go on with takes the steps of an undisturbed one."""
    settings = tiny(corpus(tmp_path), "model.compile=default", "optimizer.schedule.kind=constant", "evaluation.every=0")
    for process, (name, steps) in enumerate((("whole", 6), ("resumed", 3), ("resumed", 6))):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / f"code-{process}"))
        outcome = run("train", *settings, f"run.name={name}", f"run.budget.steps={steps}", cwd=tmp_path, timeout=380)
        assert outcome.returncode == 0, outcome.stderr
    assert "warm-up is over" in outcome.stderr
    assert losses(tmp_path / "runs" / "resumed") == losses(tmp_path / "runs" / "whole")
    whole, resumed = (
        tmp_path / "runs" / name / "checkpoints" / "checkpoint-6" / "model.safetensors" for name in ("whole", "resumed")
    )
    assert whole.read_bytes() == resumed.read_bytes()
    steps = [record for record in figures(tmp_path / "runs" / "whole") if "loss" in record]
    assert steps[0]["compile_seconds"] == steps[-1]["compile_seconds"] == 0, "the first was compiled before it"
