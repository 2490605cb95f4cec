"""Commands that use a model take any checkpoint: of a run by its step, the best, or a folder wherever it lies."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

RUN = "runs/default"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a run that is measured at each of its four checkpoints, and is worst at its end; return its home."""
    home = tmp_path_factory.mktemp("chosen")
    more = ("evaluation.every=5", "state_store.keep=10", "optimizer.schedule.kind=constant", "optimizer.clip=1000")
    settings = tiny(corpus(home), SAME_RHYTHM, *more)
    for budget, rate in ((15, 1e-3), (20, 10.0)):
        rhythm = (f"run.budget.steps={budget}", f"optimizer.learning_rate={rate}", "optimizer.schedule.warmup_steps=0")
        process = run_here("train", *settings, *rhythm, cwd=home)
        assert process.returncode == 0, process.stderr
    return home


def measured(home):
    """Return the evaluation loss of each checkpoint by its step, as the manifests have it."""
    manifests = (home / RUN).glob("checkpoints/*/MANIFEST.json")
    return {told["step"]: told["evaluation_loss"] for told in (json.loads(path.read_text()) for path in manifests)}


def spoil(path):
    """Flip a bit of the last byte of ``path``."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def evaluated(home, *arguments):
    """Return the loss that ``evaluate`` prints, and the checkpoint that it names."""
    process = run_here("evaluate", *arguments, cwd=home)
    assert process.returncode == 0, process.stderr
    location, _, loss, _ = process.stdout.split(" · ")
    return float(loss.split()[0]), int(location.rpartition("-")[2])


def test_a_step_is_the_checkpoint_of_that_step(home):
    """``--step`` and the folder of a checkpoint take that checkpoint, whose loss is the one that the run measured."""
    losses = measured(home)
    assert len(set(losses.values())) == 4
    for chosen in ([RUN, "--step", "10"], [f"{RUN}/checkpoints/checkpoint-10"]):
        loss, step = evaluated(home, *chosen)
        assert step == 10
        assert loss == pytest.approx(losses[10], abs=1e-3)


def test_the_best_is_that_of_the_lowest_evaluation_loss(home):
    """``--best`` takes the checkpoint with the lowest evaluation loss, to evaluate and to inspect; reports mark it."""
    losses = measured(home)
    best = min(losses, key=losses.get)
    assert best != 20
    assert evaluated(home, RUN, "--best")[1] == best
    inspected = run_here("inspect", RUN, "--best", cwd=home)
    assert inspected.returncode == 0, inspected.stderr
    assert inspected.stdout.startswith(f"{RUN}/checkpoints/checkpoint-{best}\n")
    table = json.loads(run_here("inspect", RUN, "--json", cwd=home).stdout)
    assert [each["step"] for each in table["checkpoints"] if each["best"]] == [best]
    report = json.loads(run_here("report", RUN, "--json", cwd=home).stdout)
    assert [each["step"] for each in report["runs"][0]["checkpoints"] if each["is_best"]] == [best]


def test_a_checkpoint_copied_elsewhere_is_used_by_itself(home, tmp_path):
    """A copy of a checkpoint, under another name and far from its run, writes text, is exported and is verified."""
    copy = tmp_path / "mine"
    shutil.copytree(home / RUN / "checkpoints/checkpoint-15", copy)
    texts = [
        run_here("generate", *chosen, "--max-new-tokens=8", cwd=home).stdout
        for chosen in ([str(copy)], [RUN, "--step=15"], [RUN, "--step=5"])
    ]
    assert texts[0] == texts[1] != texts[2]
    assert run_here("export", str(copy), str(tmp_path / "model"), cwd=home).returncode == 0
    weights = "model.safetensors"
    assert (tmp_path / "model" / weights).read_bytes() == (copy / weights).read_bytes()
    spoil(copy / weights)
    process = run_here("generate", str(copy), cwd=home)
    assert process.returncode == 4
    assert "damaged" in process.stderr
    assert weights in process.stderr


def test_a_damaged_checkpoint_that_was_chosen_is_named(home, tmp_path):
    """Of the oldest checkpoint too, the error says that it is damaged, not that there is none."""
    shutil.copytree(home / RUN, tmp_path / RUN)
    spoil(tmp_path / RUN / "checkpoints/checkpoint-5/model.safetensors")
    process = run_here("generate", RUN, "--step", "5", cwd=tmp_path)
    assert process.returncode == 4
    assert "checkpoint-5 of runs/default is damaged" in process.stderr
    assert "was quarantined: choose another step" in process.stderr


@pytest.mark.parametrize("name", ["model.safetensors", "MANIFEST.json", "COMMIT"])
def test_an_older_checkpoint_in_the_place_of_a_damaged_one_is_told(home, tmp_path, caplog, name):
    """A command that takes the newest checkpoint warns of the damaged one whose place it takes."""
    shutil.copytree(home / RUN, tmp_path / RUN)
    spoil(tmp_path / RUN / "checkpoints/checkpoint-20" / name)
    assert evaluated(tmp_path, RUN)[1] == 15
    (warning,) = caplog.messages
    assert warning.startswith("checkpoint-20 of runs/default is damaged (")
    assert warning.endswith(") and was quarantined: checkpoint-15 is used")


@pytest.mark.parametrize("name", ["MANIFEST.json", "COMMIT"])
def test_no_other_checkpoint_is_chosen_in_the_place_of_an_incomplete_one(home, tmp_path, caplog, name):
    """``--last`` and ``--step`` of one without its manifest end with 4 and name it, and ``--best`` warns of it."""
    shutil.copytree(home / RUN, tmp_path / RUN)
    spoil(tmp_path / RUN / "checkpoints/checkpoint-15" / name)
    for chosen in ("--last=2", "--steps=15,20"):
        process = run_here("average", RUN, chosen, "--output=mean", "--no-evaluation", cwd=tmp_path)
        assert process.returncode == 4
        assert "checkpoint-15 of runs/default is damaged" in process.stderr
    evaluated(tmp_path, RUN, "--best")
    assert "checkpoint-15 of runs/default is damaged and cannot be chosen" in caplog.text
    process = run_here("generate", RUN, "--step=15", cwd=tmp_path)
    assert process.returncode == 4
    assert "checkpoint-15 of runs/default is damaged" in process.stderr


@pytest.mark.parametrize("command", [["generate"], ["evaluate"], ["inspect"]])
def test_a_step_that_is_not_there_is_told_with_those_that_are(home, command):
    """A step without a checkpoint ends with 4 and a sentence that names the steps there are."""
    process = run_here(*command, RUN, "--step", "7", cwd=home)
    assert process.returncode == 4
    assert "holds no checkpoint of step 7: it holds 5, 10, 15, 20" in process.stderr


def test_two_names_for_a_checkpoint_are_refused(home):
    """A checkpoint's folder together with ``--step`` or ``--best`` ends with 2."""
    for more in ("--step=10", "--best"):
        for command in ("generate", "inspect"):
            process = run_here(command, f"{RUN}/checkpoints/checkpoint-5", more, cwd=home)
            assert process.returncode == 2, process.stderr
            assert "is one checkpoint: leave out --step and --best" in process.stderr


def test_without_a_measured_checkpoint_nobody_can_tell_the_best(tmp_path):
    """``--best`` of a run that measured none of its checkpoints ends with 4 and says what to do."""
    more = ("run.budget.steps=2", "state_store.every=1", "evaluation.every=0", "evaluation.at_start=false")
    assert run_here("train", *tiny(corpus(tmp_path), SAME_RHYTHM, *more), cwd=tmp_path).returncode == 0
    manifests = (tmp_path / RUN).glob("checkpoints/*/MANIFEST.json")
    for path in manifests:  # the last one may have been measured at the end of the budget
        if json.loads(path.read_text())["evaluation_loss"] is not None:
            shutil.rmtree(path.parent)
    process = run_here("generate", RUN, "--best", cwd=tmp_path)
    assert process.returncode == 4
    assert "--step" in process.stderr


def test_a_damaged_step_is_not_replaced_by_another(home, tmp_path):
    """A checkpoint that was asked for by its step and is damaged ends with 4: no other one is taken for it."""
    shutil.copytree(home / "runs", tmp_path / "runs")
    spoil(tmp_path / RUN / "checkpoints/checkpoint-15/model.safetensors")
    process = run_here("generate", RUN, "--step", "15", cwd=tmp_path)
    assert process.returncode == 4
    assert "checkpoint-15" in process.stderr
    assert "damaged" in process.stderr
    assert not process.stdout


@pytest.mark.parametrize(
    "command",
    [["evaluate", RUN], ["generate", RUN], ["export", RUN, "made"], ["samples", RUN, "--step", "15"]],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(("was", "now"), [(b'"seed": 1234', b'"seed": 1224'), (b'_length": 64', b'_length": 65')])
def test_no_command_believes_a_record_of_which_a_bit_has_changed(home, tmp_path, caplog, command, was, now):
    """Another seed or length in run.json is told as damage, and the verified copy gives the same result."""
    for place in ("sound", "damaged"):
        shutil.copytree(home / RUN, tmp_path / place / RUN, symlinks=True)
    path = tmp_path / "damaged" / RUN / "run.json"
    assert was in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(was, now))
    sound, damaged = (run_here(*command, cwd=tmp_path / place) for place in ("sound", "damaged"))
    assert (damaged.returncode, damaged.stdout) == (0, sound.stdout), damaged.stderr
    assert "run.json is damaged" in caplog.text
    assert "Traceback" not in damaged.stderr


def test_a_record_of_an_earlier_version_is_compared_with_the_one_in_the_checkpoint(home, tmp_path):
    """It has no hash: what differs without a recorded change is refused, and the rest is taken as it is."""
    shutil.copytree(home / RUN, tmp_path / RUN, symlinks=True)
    path = tmp_path / RUN / "run.json"
    record = json.loads(path.read_text()) | {"schema": 1}
    del record["hash"]
    path.write_text(json.dumps(record))
    assert evaluated(tmp_path, RUN, "--step", "10") == evaluated(home, RUN, "--step", "10")
    record["settings"]["run"]["seed"] += 1
    path.write_text(json.dumps(record))
    process = run_here("evaluate", RUN, "--step", "10", cwd=tmp_path)
    assert process.returncode == 4, process.stdout
    assert "run.seed in run.json is not what" in process.stderr
