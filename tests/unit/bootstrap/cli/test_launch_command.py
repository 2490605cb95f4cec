"""The command that prints a job file."""

from __future__ import annotations

import shlex

import pytest
import yaml

from holdfast.bootstrap.cli.main import main

SHARED = ["run.dir=/shared/runs/mine", "data.path=/shared/texts", "optimizer.batch_size=auto"]
POD = ["--image", "your/holdfast", "--volume", "shared:/shared"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def printed(capsys, *arguments):
    """Return what ``launch`` with ``arguments`` prints, and its notes."""
    assert main(["launch", *arguments]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("kind", ["kubernetes", "ray", "skypilot"])
def test_a_file_of_yaml_is_printed_and_nothing_noted(kind, capsys):
    """With a run folder in a volume there is nothing to say."""
    output, notes = printed(capsys, kind, "--nodes", "2", *POD, *SHARED)
    assert [*yaml.safe_load_all(output)]
    assert notes == ""


@pytest.mark.parametrize(
    ("arguments", "workers"),
    [
        (["--nodes", "2"], ["distributed.workers=[16, 16]", "distributed.gpus_per_worker=1"]),
        (
            ["--gpus", "0", "--nodes", "4", "--cpus", "8"],
            ["distributed.workers=[4, 4]", "distributed.cpus_per_worker=8", "distributed.gpus_per_worker=0"],
        ),
        (
            ["distributed.kind=ray", "distributed.workers=[2, 8]", "distributed.resize_seconds=5"],
            ["distributed.resize_seconds=5", "distributed.workers=[2, 8]", "distributed.gpus_per_worker=1"],
        ),
    ],
)
def test_the_workers_on_ray_are_those_of_the_machines(arguments, workers, capsys):
    """Each setting of the workers stands once, and a least number that the settings name is kept."""
    found = yaml.safe_load(printed(capsys, "ray", *POD, *SHARED, *arguments)[0])
    words = shlex.split(found["spec"]["entrypoint"])
    assert [word for word in words if word.startswith("distributed.")] == workers


def test_a_configuration_that_train_refuses_gives_no_file(capsys):
    """The errors are those of train, with exit code 2, and nothing is printed or written."""
    assert main(["launch", "slurm", "--output", "job.sh", "optimizer.learning_rat=1"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert "optimizer.learning_rate" in errors
    assert main(["launch", "slurm", "state_store.roles=[read]"]) == 2
    assert "roles" in capsys.readouterr().err


def test_a_secret_is_in_no_file(capsys, monkeypatch):
    """Given by a file, by the environment or on the command line, it is named as a variable and not printed."""
    monkeypatch.setenv("HOLDFAST_DATA__PATH", "https://user:hunter2@host/a.jsonl")
    for kind in ("slurm", "kubernetes", "ray", "skypilot", "torchrun"):
        more = [] if kind in ("slurm", "torchrun") else POD
        output, notes = printed(capsys, kind, *more)
        assert "hunter2" not in output + notes
        assert "HOLDFAST_DATA__PATH" in notes


def test_the_file_is_written(capsys, tmp_path):
    """--output writes what would be printed, and a path that cannot be written is a sentence."""
    output, _ = printed(capsys, "slurm", *SHARED)
    assert printed(capsys, "slurm", "--output", "job.sh", *SHARED)[0] == ""
    assert (tmp_path / "job.sh").read_text() == output
    assert main(["launch", "slurm", "--output", "none/job.sh"]) == 2
    assert "--output none/job.sh cannot be written" in capsys.readouterr().err


def test_a_file_is_submitted(capsys, monkeypatch, tmp_path):
    """--submit hands the file to the scheduler's program, and says which one is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "slurm", "--submit", *SHARED]) == 2
    assert "sbatch, which is not on the PATH" in capsys.readouterr().err
    (tmp_path / "sbatch").write_text(f'#!/bin/bash\necho "$(<$1)" > {tmp_path}/submitted\n')
    (tmp_path / "sbatch").chmod(0o755)
    assert printed(capsys, "slurm", "--submit", *SHARED)[0] == ""
    assert "#SBATCH --job-name=holdfast-mine" in (tmp_path / "submitted").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kubernetes"], "needs --image"),
        (["ray"], "needs --image"),
        (["slurm", "--image", "x"], "--image does not apply to launch slurm"),
        (["torchrun", "--volume", "a:/b"], "--volume does not apply to launch torchrun"),
        (["slurm", "--accelerator", "H100"], "--accelerator does not apply to launch slurm"),
        (["slurm", "--name", "My_Run"], "--name My_Run must"),
        (["slurm", "--nodes", "2", "distributed.kind=single"], "distributed.kind=single trains in one process"),
        (["torchrun", "--submit"], "torchrun has no scheduler"),
        (["slurm", "--nodes", "3", "optimizer.batch_size=16"], "24 processes cannot share optimizer.batch_size=16"),
        (["slurm", "--gpus", "3", "optimizer.batch_tokens=1024", "data.sequence_length=256"], "optimizer.batch_size=4"),
        (["ray", *POD, "distributed.kind=torch"], "starts the processes by distributed.kind=ray, and not by torch"),
        (["ray", *POD, "--gpus", "1", "--processes", "2"], "2 processes of each machine need as many GPUs on Ray"),
        (
            ["ray", *POD, "distributed.kind=ray", "distributed.workers=[1, 4]"],
            "distributed.workers goes up to 4, but the job has machines for 8 workers",
        ),
        (
            ["ray", *POD, "distributed.kind=ray", "distributed.workers=[3, 8]", "optimizer.batch_size=16"],
            "3 processes cannot share optimizer.batch_size=16",
        ),
        (["slurm", "distributed.kind=ray"], "launch slurm starts the processes itself, and distributed.kind is ray"),
        (["slurm", "state_store.memory_tier=on"], "state_store.memory_tier=on is for one process"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, words, capsys):
    """Each is one sentence and exit code 2."""
    assert main(["launch", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert words in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("text", ["shared", "shared:here", ":/x"])
def test_a_volume_has_a_name_and_an_absolute_path(text, capsys):
    """Other text is refused with the form that is wanted."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["launch", "kubernetes", "--volume", text])
    assert "NAME:PATH with an absolute path" in capsys.readouterr().err


def test_a_run_on_processors_asks_for_no_gpu(capsys):
    """Without GPUs there is one process on a machine unless --processes says another number."""
    output, _ = printed(capsys, "slurm", *SHARED, "optimizer.device=cpu", "--processes", "2")
    assert "gpus" not in output
    assert "distributed.processes=2" in output
    assert "gpus" not in printed(capsys, "slurm", "--command", "prepare", "--nodes", "4", *SHARED)[0]


def test_the_setting_of_processes_is_the_number_of_a_machine(capsys):
    """The setting distributed.processes counts where --processes is not given, and is never set to two numbers."""
    for arguments, number in ((["distributed.processes=3"], 3), (["distributed.processes=3", "--processes", "2"], 2)):
        output, _ = printed(capsys, "torchrun", *SHARED, *arguments)
        assert output.rstrip().endswith(f"distributed.processes={number}")
        several, _ = printed(capsys, "torchrun", "--nodes", "2", *SHARED, *arguments)
        assert f"--nproc-per-node {number}" in several
        assert (output.count("processes="), several.count("processes=")) == (1, 0)


@pytest.mark.parametrize("name", ["default", "My_Run.1", "x" * 100, "1"])
def test_the_name_of_a_run_becomes_one_that_kubernetes_accepts(name, capsys):
    """The name begins with a letter and has small letters, digits and dashes, and not too many."""
    output, _ = printed(capsys, "kubernetes", *POD, f"run.name={name}")
    found = yaml.safe_load(output)["metadata"]["name"]
    assert found.replace("-", "").isalnum()
    assert found == found.lower()
    assert found[0].isalpha()
    assert len(found) <= 45
