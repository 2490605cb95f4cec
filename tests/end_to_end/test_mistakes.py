"""A user's mistake is one sentence and the documented exit code, never a traceback."""

from __future__ import annotations

import pytest
from command_line import corpus, run, tiny


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
    ],
)
def test_wrong_settings_exit_with_two(tmp_path, arguments, named):
    """A wrong setting exits with 2 and names the key, where it stands, and what would be right."""
    (tmp_path / "bad.yaml").write_text("run: {name: [")
    process = run("train", *arguments, cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    message = complaint(process)
    assert [name for name in named if name not in message] == []


def test_wrong_data_exit_with_three(tmp_path):
    """An empty corpus, a missing file, a binary file and a missing field exit with 3 and name the file."""
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff" * 100)
    (tmp_path / "field.jsonl").write_text('{"body": "hello"}\n')
    for name in ("empty.txt", "nothing/*.txt", "binary.txt", "field.jsonl"):
        process = run("train", *tiny(tmp_path / name), cwd=tmp_path)
        assert process.returncode == 3, (name, process.stderr)
        assert name.split("/")[-1] in complaint(process)


def test_a_folder_that_is_no_run_exits_with_four(tmp_path):
    """Asking for text from a folder without a run exits with 4 and names the folder."""
    process = run("generate", str(tmp_path / "nowhere"), cwd=tmp_path)
    assert process.returncode == 4
    assert "nowhere" in complaint(process)


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    """While one process holds the run folder, another is refused with 4."""
    from contextlib import closing

    from bootstrap.run_folder import RunFolder

    with closing(RunFolder(tmp_path / "runs/default")):
        process = run("train", *tiny(corpus(tmp_path)), cwd=tmp_path)
    assert process.returncode == 4
    assert "another process trains" in complaint(process)


def test_config_shows_each_value_and_its_origin(tmp_path):
    """``config`` prints the resolved settings with where each came from, and --config accepts what it prints."""
    process = run("config", "run.seed=7", cwd=tmp_path)
    assert process.returncode == 0
    assert any("seed: 7" in line and "command line" in line for line in process.stdout.splitlines())
    (tmp_path / "again.yaml").write_text(process.stdout)
    again = run("config", "--config", "again.yaml", cwd=tmp_path)
    assert any("seed: 7" in line and "again.yaml" in line for line in again.stdout.splitlines())
