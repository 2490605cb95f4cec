"""A user's mistake is one sentence and the documented exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.command_line import corpus, environment, run, run_here, tiny


def complaint(process):
    """Return the one line that the user sees."""
    assert "Traceback" not in process.stderr
    lines = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, process.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["optimizer.lerning_rate=1"], ["optimizer.lerning_rate", "optimizer.learning_rate", "command line"]),
        (["--config", "missing.yaml"], ["missing.yaml"]),
        (["--config", "bad.yaml"], ["bad.yaml", "line"]),
        (["optimizer.learning_rate=fast"], ["optimizer.learning_rate", "fast"]),
        (["optimizer.learning_rate=-1"], ["optimizer.learning_rate"]),
        (["data.kind=fils"], ["files"]),
        (["data.kind=nowhere"], ["nowhere"]),
        (["data.fold=2"], ["data.fold", "data.folds", "command line"]),
        (["data.packing.stride=9"], ["data.packing.stride", "data.packing.kind=sliding", "command line"]),
        (["data.kind=tokens", "data.path=x", "data.mode=stream"], ["data.mode", "data.kind=tokens", "command line"]),
    ],
)
def test_wrong_settings_exit_with_two(tmp_path, arguments, named):
    """A wrong setting exits with 2 and names the key, where it stands, and what would be right."""
    (tmp_path / "bad.yaml").write_text("run: {name: [")
    process = run_here("train", *arguments, cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    message = complaint(process)
    assert [name for name in named if name not in message] == []


@pytest.mark.slow
def test_wrong_data_exit_with_three(tmp_path):
    """An empty corpus, a missing file, a binary file and a missing field exit with 3 and name the file."""
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff" * 100)
    (tmp_path / "field.jsonl").write_text('{"body": "hello"}\n')
    for name in ("empty.txt", "nothing/*.txt", "binary.txt", "field.jsonl"):
        process = run_here("train", *tiny(tmp_path / name), cwd=tmp_path)
        assert process.returncode == 3, (name, process.stderr)
        assert name.split("/")[-1] in complaint(process)


def test_a_folder_that_is_no_run_exits_with_four(tmp_path):
    """Asking for text from a folder without a run exits with 4 and names the folder."""
    process = run_here("generate", str(tmp_path / "nowhere"), cwd=tmp_path)
    assert process.returncode == 4
    assert "nowhere" in complaint(process)


@pytest.mark.parametrize(
    ("mistake", "code"),
    [
        ("data.path=nowhere/*.txt", 3),
        ("model.config.num_attention_heads=5", 2),
    ],
)
def test_a_start_that_fails_claims_no_folder(tmp_path, mistake, code):
    """After a first start that came to nothing, the same command without the mistake trains."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=2", "evaluation.at_start=false")
    assert run_here("train", *settings, mistake, cwd=tmp_path).returncode == code
    process = run_here("train", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"schema": 1, "settings": 5, "auto": {}}'])
def test_a_damaged_record_exits_with_four(tmp_path, content):
    """A run.json that is cut off or is something else exits with 4 and names the file, to train and to evaluate."""
    (tmp_path / "runs/default").mkdir(parents=True)
    (tmp_path / "runs/default/run.json").write_text(content)
    for command in (["train", *tiny(corpus(tmp_path))], ["evaluate", "runs/default"]):
        process = run_here(*command, cwd=tmp_path)
        assert process.returncode == 4, process.stderr
        assert "run.json is damaged" in complaint(process)


def test_the_current_folder_is_not_set_aside(tmp_path):
    """``--fresh`` on the folder that the command was started in exits with 4 and moves nothing."""
    (tmp_path / "mine.txt").write_text("keep")
    process = run_here("train", "--fresh", "run.dir=.", cwd=tmp_path)
    assert process.returncode == 4, process.stderr
    assert "start it from another folder" in complaint(process)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("command", "code"),
    [("config sample.prompt=é", 0), ("config sample.prompt=é 2>&- >&-", 0), ("evaluate nowhere 2>&-", 4)],
)
def test_streams_do_not_end_a_command(tmp_path, command, code):
    """A command whose output takes no accents, or is closed, still does its work and exits with the code of it."""
    process = subprocess.run(
        f"{sys.executable} -m application {command}",
        shell=True,
        cwd=tmp_path,
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == code, process.stderr
    assert b"Traceback" not in process.stderr + process.stdout


@pytest.mark.slow
def test_evaluate_refuses_data_that_have_changed(tmp_path):
    """``evaluate`` exits with 4 when the data are not the run's any more, and ``generate`` does not mind."""
    path = corpus(tmp_path)
    settings = tiny(path, "run.budget.steps=2", "evaluation.at_start=false")
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    corpus(tmp_path, seed=1)
    process = run_here("evaluate", "runs/default", cwd=tmp_path)
    assert process.returncode == 4, process.stderr
    assert "data have changed" in complaint(process)
    assert run_here("generate", "runs/default", "--max-new-tokens=2", cwd=tmp_path).returncode == 0


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    """While one process holds the run folder, another is refused with 4."""
    from contextlib import closing

    from holdfast.bootstrap.run_folder.folder import RunFolder

    with closing(RunFolder(tmp_path / "runs/default")):
        process = run("train", *tiny(corpus(tmp_path)), cwd=tmp_path)
    assert process.returncode == 4
    assert "another process trains" in complaint(process)


def test_config_shows_each_value_and_its_origin(tmp_path):
    """``config`` prints the resolved settings with where each came from, and --config accepts what it prints."""
    process = run_here("config", "run.seed=7", cwd=tmp_path)
    assert process.returncode == 0
    assert any("seed: 7" in line and "command line" in line for line in process.stdout.splitlines())
    (tmp_path / "again.yaml").write_text(process.stdout)
    again = run_here("config", "--config", "again.yaml", cwd=tmp_path)
    assert any("seed: 7" in line and "again.yaml" in line for line in again.stdout.splitlines())


def test_config_describes_every_setting(tmp_path):
    """``config --describe`` lists the settings of every section with what they are for."""
    process = run_here("config", "--describe", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    sections = {line.split(".")[0].split(" ")[0] for line in process.stdout.splitlines()}
    assert {"run", "data", "tokenizer", "model", "optimizer", "state_store", "evaluation", "sample"} <= sections


def test_an_interrupted_command_exits_with_130(monkeypatch, capsys):
    """Ctrl-C in a command that has no run to stop ends it with 130 and without a traceback."""
    from holdfast.bootstrap.cli import main as cli
    from holdfast.bootstrap.cli import short_commands as config_command

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(config_command, "config", interrupted)
    assert cli.main(["config"]) == 130
    assert not capsys.readouterr().err


def test_checkpoints_without_their_record_are_not_continued(tmp_path):
    """A run folder with checkpoints but no run.json is refused with 4: nobody knows what they are of."""
    (tmp_path / "runs/default/checkpoints/checkpoint-5").mkdir(parents=True)
    process = run_here("train", *tiny(corpus(tmp_path)), cwd=tmp_path)
    assert process.returncode == 4
    assert "run.json" in complaint(process)
