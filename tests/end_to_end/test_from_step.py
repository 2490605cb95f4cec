"""A run goes back to an earlier checkpoint because a person says so."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys

import pytest

from holdfast.adapters.shared.files.regular_file import sealed
from holdfast.bootstrap.operations.named_checkpoint import return_to
from holdfast.configs.settings import TrainSettings
from tests.support.command_line import SAME_RHYTHM, corpus, environment, losses, run_here, tiny

RUN = "runs/default"
MORE = (SAME_RHYTHM, "run.budget.steps=20", "state_store.keep=10", "evaluation.at_start=false")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a run with checkpoints of steps 5, 10, 15 and 20; return its home."""
    home = tmp_path_factory.mktemp("trained")
    process = run_here("train", *tiny(corpus(home), *MORE), cwd=home)
    assert process.returncode == 0, process.stderr
    return home


@pytest.fixture
def home(trained, tmp_path):
    """Return the run's home at another place, as if it had been moved there."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    record = tmp_path / RUN / "run.json"
    told = json.loads(record.read_text())
    del told["folder"]  # else it would be a copy, which is a run of its own
    record.write_text(json.dumps(sealed(told), indent=1))
    return tmp_path


def train(home, trained, *more):
    """Continue the run of ``home`` on the data of ``trained``."""
    return run_here("train", *tiny(trained / "corpus.jsonl", *MORE), *more, cwd=home)


def steps_in(folder):
    """Return the steps of the checkpoints in ``folder``."""
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


def test_a_run_goes_back_and_comes_to_the_same_end(home, trained):
    """Later checkpoints are moved aside, each step stands once in the metrics, and the end is the same to the bit."""
    process = train(home, trained, "--from-step", "10")
    assert process.returncode == 0, process.stderr
    assert "went back from step 20 to step 10" in process.stdout
    assert steps_in(home / RUN / "superseded") == [15, 20]
    assert steps_in(home / RUN / "checkpoints") == [5, 10, 15, 20]
    assert sorted(losses(home / RUN)) == list(range(1, 21))
    again, before = (home / RUN / place / "checkpoint-20" for place in ("checkpoints", "superseded"))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (again / name).read_bytes() == (before / name).read_bytes()


def test_a_return_is_recorded(home, trained):
    """The history in run.json, and explain, tell from which step to which the run went back; other settings hold."""
    process = train(home, trained, "--from-step", "15", "optimizer.learning_rate=5e-4")
    assert process.returncode == 0, process.stderr
    history = json.loads((home / RUN / "run.json").read_text())["history"]
    assert history[0]["from_step"] == {"left": 20, "step": 15}
    assert "optimizer.learning_rate" in history[1]["changed"]
    assert "went back from step 20 to 15" in run_here("explain", RUN, cwd=home).stdout


def test_a_step_without_a_checkpoint_changes_nothing(home, trained):
    """A step that was not saved ends with 4 and the steps that were, and leaves all in its place."""
    before = (home / RUN / "run.json").read_bytes()
    process = train(home, trained, "--from-step", "12")
    assert process.returncode == 4
    assert "holds no checkpoint of step 12: it holds 5, 10, 15, 20" in process.stderr
    assert steps_in(home / RUN / "checkpoints") == [5, 10, 15, 20]
    assert (home / RUN / "run.json").read_bytes() == before


def test_a_damaged_checkpoint_is_not_gone_back_to(home, trained):
    """A return to a checkpoint that does not verify ends with 4, and no later one is moved."""
    weights = home / RUN / "checkpoints/checkpoint-10/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    process = train(home, trained, "--from-step", "10")
    assert process.returncode == 4
    assert "checkpoint-10" in process.stderr
    assert "damaged" in process.stderr
    assert steps_in(home / RUN / "checkpoints") == [5, 15, 20]
    assert not (home / RUN / "superseded").exists()


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--fresh", "--from-step=5"], 2), (["--from-step=5", "run.name=none"], 4)]
)
def test_what_cannot_go_back_is_refused(home, trained, arguments, code):
    """A return of a new run, or of a folder that holds none, is refused, and no folder is made."""
    if code == 2:
        with pytest.raises(SystemExit, match="2"):
            train(home, trained, *arguments)
    else:
        assert train(home, trained, *arguments).returncode == code
    assert [path.name for path in (home / "runs").iterdir()] == ["default"]


def test_copies_of_later_steps_are_gone_from_the_archive(tmp_path):
    """After a return a run on an empty disk continues from where it went back to, not from a later copy."""
    archive = ("state_store.archive.url=./archive", "evaluation.every=0")
    settings = tiny(corpus(tmp_path), *MORE, *archive)
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    process = run_here("train", "--from-step=10", *settings, "run.budget.steps=12", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    shutil.rmtree(tmp_path / RUN)
    process = run_here("train", *settings, "run.budget.steps=12", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "is finished at step 12" in process.stdout


def test_later_copies_in_the_archive_are_left_behind_where_the_disk_has_lost_them(tmp_path):
    """A return to the newest checkpoint of the disk leaves later copies in the archive behind: none comes back."""
    settings = tiny(corpus(tmp_path), *MORE, "state_store.archive.url=./archive", "evaluation.every=0")
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    for step in (15, 20):
        shutil.rmtree(tmp_path / RUN / f"checkpoints/checkpoint-{step}")
    process = run_here("train", "--from-step=10", *settings, "run.budget.steps=12", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "went back from step 20 to step 10" in process.stdout
    assert "finished 12 steps" in process.stdout


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restart_by_a_launcher_does_not_go_back_again(name):
    """The command that a launcher or Slurm gives once more continues from the newest checkpoint."""
    said = []
    return_to(5, TrainSettings(run={"dir": "nowhere"}), said.append, environment={name: "1"})
    assert "continues from its newest checkpoint" in said[0]
    assert len(said) == 1


@pytest.mark.slow
def test_a_supervised_run_goes_back_once(home, trained):
    """Under the supervisor the return is made before the first start, and by no later one."""
    from tests.support.command_line import run

    process = run("train", "--supervise", "--from-step", "10", *tiny(trained / "corpus.jsonl", *MORE), cwd=home)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("went back from step 20 to step 10") == 1
    assert steps_in(home / RUN / "superseded") == [15, 20]


@pytest.mark.parametrize("option", [["--fresh"], ["--from-step", "10"]])
def test_nothing_is_moved_before_all_ranks_have_met(home, trained, monkeypatch, option):
    """The first of two processes that do not find each other leaves the run as it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    process = train(home, trained, *option, "distributed.timeout_seconds=1")
    assert process.returncode == 1
    assert "did not reach the others" in process.stderr
    assert steps_in(home / RUN / "checkpoints") == [5, 10, 15, 20]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_a_launcher_started_goes_back(home, trained):
    """Two processes of torchrun go back to an earlier step and continue from it."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "application",
    ]
    command = [*launcher, "train", *tiny(trained / "corpus.jsonl", *MORE), "--from-step", "15"]
    told = environment() | {"OMP_NUM_THREADS": "1"}
    outcome = subprocess.run(command, cwd=home, env=told, text=True, capture_output=True, timeout=250, check=False)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert "went back from step 20 to step 15" in outcome.stdout
    assert sorted(losses(home / RUN)) == list(range(1, 21))
