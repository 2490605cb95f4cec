"""What a person sees in a terminal of 80 and of 120 columns, and in a file."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
from safetensors import safe_open

from tests.support.command_line import SAME_RHYTHM, Hold, corpus, environment, run, run_here, tiny
from tests.support.terminals import Terminal

WIDTHS = pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
SHORT = ("evaluation.every=0", "evaluation.at_start=false", "state_store.every=4", "run.budget.steps=8", SAME_RHYTHM)


def told(lines):
    """Return the first drawing of each line of the banner by its first word."""
    return {line.split()[0]: line for line in lines if re.match(r"(run|model|device|step|data|budget|auto) {2,}", line)}


def figures_of(folder):
    """Return the records of ``metrics.jsonl`` that tell of a step."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if "loss" in record]


def assert_true(banner, folder, columns):
    """Check each fact of the banner against what the run has left."""
    first = figures_of(folder)[0]
    record = json.loads((folder / "run.json").read_text())
    with safe_open(folder / "checkpoints/checkpoint-8/model.safetensors", "np") as tensors:
        parameters = sum(tensors.get_tensor(name).size for name in tensors.keys())  # noqa: SIM118  no mapping
    assert banner["run"].split()[1] == "runs/default"
    assert f"{parameters:,} parameters" in banner["model"]
    assert banner["device"].split(maxsplit=1)[1] == "cpu, fp32"
    assert f"= {first['tokens']:,} tokens, micro-batches of {first['micro_batch']} rows" in banner["step"]
    there = int(re.search(r"([\d,]+) tokens", banner["data"])[1].replace(",", ""))
    budget, epochs = re.search(r"8 steps = ([\d,]+) tokens = ([\d.]+) epochs", banner["budget"]).groups()
    assert int(budget.replace(",", "")) == 8 * first["tokens"]
    assert float(epochs) == pytest.approx(8 * first["tokens"] / there, rel=0.05)
    assert f"data.mode={record['auto']['data.mode']['value']}" in banner["auto"]
    assert max(map(len, banner.values())) <= min(columns, 80)


def assert_rising(shares):
    """Check that a share was shown which rose."""
    numbers = [int(share) for share in shares]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 1


def test_the_banner_counts_the_data_that_end_a_run(tmp_path):
    """With ``data.epochs`` the budget is that of the data, and nothing is said to be held out if nothing is."""
    ended_by_data = ("data.holdout=0", "data.epochs=1", "run.budget.steps=1000000")
    finished = run_here("train", *tiny(corpus(tmp_path, documents=20), *SHORT, *ended_by_data), cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    steps = int(re.search(r"budget  (\d+) steps = [\d,]+ tokens = 1\.0 epochs", finished.stderr)[1])
    assert figures_of(tmp_path / "runs/default")[-1]["step"] == steps
    assert "held out" not in finished.stderr


@pytest.mark.slow
@WIDTHS
@pytest.mark.timeout(300)
def test_a_first_run_and_its_resume(tmp_path, columns):
    """Nothing is wider than the terminal; the banner is true and first; changes and shares of evaluations are shown."""
    measured = ("evaluation.at_start=true", "evaluation.batch_size=1", "data.holdout=0.5")
    settings = [*tiny(corpus(tmp_path, documents=400)), *SHORT, *measured]
    with Terminal("train", *settings, cwd=tmp_path, columns=columns) as terminal:
        assert terminal.end() == 0, terminal.text
        lines = terminal.lines
    assert max(map(len, lines)) <= columns, max(lines, key=len)
    assert_true(told(lines), tmp_path / "runs/default", columns)
    drawn = terminal.text
    before = drawn[: re.search(r"step \d/8 · loss", drawn).start()]
    assert "model  " in before
    assert_rising(re.findall(r"evaluating · (\d+)%", drawn[: drawn.index("step 0 · evaluation")]))
    assert re.search(r"(loading|preparing|building|looking)[^\n]* · \d+ s", before)
    assert "finished 8 steps" in drawn
    changed = [*settings, "run.budget.steps=9", "optimizer.learning_rate=5e-4", "evaluation.at_start=false"]
    with Terminal("train", *changed, cwd=tmp_path, columns=columns) as terminal:
        assert terminal.end() == 0, terminal.text
        lines = terminal.lines
    assert max(map(len, lines)) <= columns, max(lines, key=len)
    assert any(re.search(r"optimizer\.learning_rate: 0\.001 -> 0\.0005$", line) for line in lines)
    assert any(re.search(r"run\.budget\.steps: 8 -> 9$", line) for line in lines)
    assert "resumed at step 8" in lines
    assert "finished 9 steps" in terminal.text
    with Terminal("evaluate", "runs/default", cwd=tmp_path, columns=columns) as terminal:
        assert terminal.end() == 0, terminal.text
    assert_rising(re.findall(r"evaluating · (\d+)%", terminal.text))
    assert terminal.lines[-1].endswith("bytes")


@pytest.mark.slow
def test_a_run_in_a_file(tmp_path):
    """Where there is no terminal each line is whole, has the time of the day and no control character."""
    process = run("train", *tiny(corpus(tmp_path)), *SHORT, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = process.stderr.splitlines()
    assert [line for line in lines if not (re.match(r"\d\d:\d\d:\d\d .*\S", line) and line.isprintable())] == []
    assert_true(told([line[9:] for line in lines]), tmp_path / "runs/default", 80)
    assert any(re.search(r"step 8/8 · loss [\d.]+ · lr ", line) for line in lines)


@pytest.mark.slow
@WIDTHS
def test_ctrl_c_is_acknowledged_at_once(tmp_path, columns):
    """Ctrl-C is answered within a second with what happens and how to stop sooner, and the run saves and ends."""
    hold = Hold(tmp_path)
    hold.behind(2)
    settings = tiny(corpus(tmp_path), *SHORT, hold.settings)
    with Terminal("train", *settings, cwd=tmp_path, columns=columns) as terminal:
        terminal.wait_for(r"step 2/8 · loss")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait_for(r"received SIGINT: saving after this step; press Ctrl-C again") < 1.0
        assert terminal.end() == 130, terminal.text
    assert max(map(len, terminal.lines)) <= columns, max(terminal.lines, key=len)
    assert "finished" not in terminal.text
    assert (tmp_path / "runs/default/checkpoints/checkpoint-2").is_dir()


def test_a_run_that_a_file_stops_is_not_finished(tmp_path):
    """A STOP file ends the run with 0, the step, the whole budget and the reason, and no claim that it is finished."""
    folder = tmp_path / "runs/default"

    def stop():
        deadline = time.monotonic() + 100
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        (folder / "STOP").touch()

    stopper = threading.Thread(target=stop)
    stopper.start()
    process = run_here("train", *tiny(corpus(tmp_path), *SHORT, "run.budget.steps=100000"), cwd=tmp_path)
    stopper.join()
    assert process.returncode == 0, process.stderr
    printed = process.stdout + process.stderr
    assert "finished" not in printed
    assert re.search(r"stopped after step [\d,]+ of 100,000 .*STOP", printed)


@pytest.mark.slow
@WIDTHS
def test_a_full_disk_is_one_trouble(tmp_path, columns):
    """A disk that takes no checkpoint is told once with its remedy, without the names of classes, and ends with 4."""
    limit = (60_000, 60_000)
    settings = tiny(corpus(tmp_path), *SHORT, "state_store.every=0", "run.budget.steps=2")
    prepared = run_here("prepare", *settings, cwd=tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    with Terminal(
        *("train", *settings),
        cwd=tmp_path,
        columns=columns,
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    ) as terminal:
        assert terminal.end() == 4, terminal.text
    printed = terminal.text.replace("\r\n", " ")
    assert printed.count("older checkpoints are unchanged") == 1
    assert not re.search(r"\w+Error|SaveOnFailure|RunFailed", printed)
    assert max(map(len, terminal.lines)) <= columns, max(terminal.lines, key=len)


@pytest.mark.slow
def test_an_embedding_host_hears_nothing_on_its_streams(tmp_path):
    """With no monitors a host's standard output and error hold its own lines, and its logging has the run's."""
    overrides = [*tiny(corpus(tmp_path)), *SHORT, "run.budget.steps=1"]
    program = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from holdfast.bootstrap import build\n"
        "from holdfast.configs.settings_layers import load_settings\n"
        "logging.basicConfig(level=logging.INFO, filename='host.log')\n"
        "print('before')\n"
        "build(load_settings([], sys.argv[1:], {}).settings, monitors=[]).run()\n"
        "print('after')\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, *overrides],
        cwd=tmp_path,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=280,
        check=True,
    )
    assert process.stdout.split() == ["before", "after"]
    assert "holdfast" not in process.stderr
    assert "INFO:holdfast:step 1 · checkpoint-1 saved" in (tmp_path / "host.log").read_text()
