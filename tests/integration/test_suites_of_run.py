"""A run evaluates checkpoints in another process, whatever becomes of that process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.bootstrap.stages.attach.suite_process import MISSING, EvaluateProcess
from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

RESULTS = {"own": {"acc": 0.1, "acc_stderr": 1 / 3}}
ANSWER = f"print({json.dumps(json.dumps({'results': RESULTS}))})"
RUN = Path("runs/default")


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that takes the Python code of the process; ``step`` is the step of its checkpoint there."""

    def replace(code):
        def command(process, step):
            return [sys.executable, "-c", f"import os, sys, time\nstep = {step}\n{code}"]

        monkeypatch.setattr(EvaluateProcess, "_command", command)
        monkeypatch.setattr(EvaluateProcess, "obstacle", None)

    return replace


def train(folder, *settings, steps=8):
    path = corpus(folder) if not (folder / "corpus.jsonl").exists() else folder / "corpus.jsonl"
    every = ("state_store.every=2", "state_store.keep=1", "evaluation.suites=[own]")
    return run_here("train", *tiny(path, SAME_RHYTHM, *every, f"run.budget.steps={steps}", *settings), cwd=folder)


def lines(folder, name):
    path = folder / RUN / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def suites(folder):
    return {each["step"]: each["suite/own/acc"] for each in lines(folder, "metrics.jsonl") if "suite/own/acc" in each}


def losses(folder):
    return [each["loss"] for each in lines(folder, "metrics.jsonl") if "loss" in each]


def test_the_log_of_a_suite_is_limited(tmp_path, stand_in, monkeypatch):
    """A suite that prints without end leaves the newest lines of its output, and is evaluated all the same."""
    monkeypatch.setattr("holdfast.adapters.shared.files.json_lines.MOST_BYTES", 10000)
    stand_in(f"for _ in range(50): print('a line of many ' * 100, file=sys.stderr, flush=True)\n{ANSWER}")
    process = EvaluateProcess(tmp_path, ["own"], device="cpu", timeout_seconds=60, trust={})
    process.start(3)
    while (outcome := process.outcome()) is None:
        time.sleep(0.05)
    assert outcome.results == RESULTS
    log = (tmp_path / "suites/log.txt").read_text()
    assert log.startswith("[earlier lines were removed]")
    assert len(log) < 12000


def test_links_and_pipes_in_the_folder_are_replaced(tmp_path, stand_in):
    """A run folder of others cannot lead the output of a suite to a file elsewhere, nor hold up the run."""
    stand_in(f"print('noise', file=sys.stderr)\n{ANSWER}")
    (tmp_path / "victim").write_text("precious")
    folder = tmp_path / "run/suites"
    folder.mkdir(parents=True)
    (folder / "answer.json").symlink_to(tmp_path / "victim")
    os.mkfifo(folder / "log.txt")
    process = EvaluateProcess(tmp_path / "run", ["own"], device="cpu", timeout_seconds=60, trust={})
    process.start(3)
    while (outcome := process.outcome()) is None:
        time.sleep(0.05)
    assert outcome.results == RESULTS
    assert (tmp_path / "victim").read_text() == "precious"
    assert (folder / "log.txt").read_text() == "noise\n"


def test_results_are_metrics_of_the_checkpoint_s_step(tmp_path, stand_in):
    """The last checkpoint is evaluated, waited for, and shown with its results; nothing is left pinned."""
    stand_in(ANSWER)
    process = train(tmp_path)
    assert process.returncode == 0, process.stderr
    assert suites(tmp_path) == {8: 0.1}
    (record,) = lines(tmp_path, "evaluations.jsonl")
    assert (record["step"], record["results"]) == (8, RESULTS)
    assert "step 8 · suites: own acc 0.1000" in process.stderr
    assert re.search(r"^suites: +own acc 0.1000 at step 8$", process.stdout, re.MULTILINE), process.stdout
    events = [each["event"] for each in lines(tmp_path, "events.jsonl")]
    assert events.index("SuiteEvaluated") < events.index("RunFinished")
    assert not list((tmp_path / RUN / "pins").iterdir())
    shown = run_here("inspect", str(RUN), cwd=tmp_path)
    assert "checkpoint-8 by own: acc 0.1000, acc_stderr 0.3333" in shown.stdout
    *_, checkpoint = json.loads(run_here("inspect", str(RUN), "--json", cwd=tmp_path).stdout)["checkpoints"]
    assert checkpoint["suites"] == RESULTS
    assert checkpoint["loss"] is not None


@pytest.mark.parametrize(
    ("code", "settings", "told"),
    [
        ("os.kill(os.getpid(), 9)", (), "was ended by signal 9"),
        ("sys.exit('error: there is no task')", (), "there is no task"),
        ("sys.exit(3)", (), "ended with code 3"),
        ("print('no results')", (), "wrote no results"),
        ("time.sleep(60)", ("evaluation.harness.timeout_seconds=0.5",), "did not end within"),
    ],
)
def test_the_process_may_fail_in_any_way(tmp_path, stand_in, code, settings, told):
    """Training ends as it would without, with one line for the failure, and the checkpoint is released."""
    stand_in(code)
    process = train(tmp_path, *settings)
    assert process.returncode == 0, process.stderr
    (line,) = [line for line in process.stderr.splitlines() if "NOT EVALUATED" in line]
    assert told in line
    assert re.search(rf"^suites: +step 8 was not evaluated: .*{told}", process.stdout, re.MULTILINE), process.stdout
    assert losses(tmp_path)[-1] > 0
    assert len(losses(tmp_path)) == 8
    assert suites(tmp_path) == {}
    assert not list((tmp_path / RUN / "pins").iterdir())


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    """Without the package the run trains and says at its start what to install."""
    monkeypatch.setattr(EvaluateProcess, "obstacle", MISSING)
    process = train(tmp_path, "evaluation.harness.every=2")
    assert process.returncode == 0, process.stderr
    assert process.stderr.count('pip install "holdfast-lm[eval]"') == 1
    assert len(losses(tmp_path)) == 8


def test_the_checkpoint_is_kept_while_it_is_evaluated(tmp_path, stand_in):
    """Retention leaves the checkpoint until the process has ended, although newer ones exceed the limit."""
    there = f"lambda step: os.path.isdir(os.path.join({str(tmp_path / RUN / 'checkpoints')!r}, f'checkpoint-{{step}}'))"
    wait = f"there = {there}\nwhile not there(40): time.sleep(0.01)\n"
    stand_in(f"{wait}assert there(step)\nassert step == 40 or not there(4)\n{ANSWER}")
    process = train(tmp_path, "evaluation.harness.every=2", steps=40)
    assert process.returncode == 0, process.stderr
    assert suites(tmp_path) == {2: 0.1, 40: 0.1}
    assert not list((tmp_path / RUN / "pins").iterdir())


def test_suites_change_nothing_in_training(tmp_path, stand_in):
    """The losses of a run with suites are those of one without, bit for bit."""
    stand_in(ANSWER)
    found = []
    for name, settings in (("with", ("evaluation.harness.every=2",)), ("without", ("evaluation.suites=[]",))):
        (tmp_path / name).mkdir()
        assert train(tmp_path / name, *settings).returncode == 0
        found.append(losses(tmp_path / name))
    assert found[0] == found[1]
    assert set(suites(tmp_path / "with")) >= {8}


def test_a_process_yields_to_training_and_ends_with_it(tmp_path, stand_in):
    """The process has the lowest priority, no variables of a launcher, and no GPU if it is to use the CPU."""
    told = tmp_path / "told.json"
    names = "('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'CUDA_VISIBLE_DEVICES')"
    values = f"[os.nice(0), os.getpid(), *(os.environ.get(name) for name in {names})]"
    written = f"json.dump({values}, open('told', 'w')); os.replace('told', {str(told)!r})"
    stand_in(f"import json\nos.chdir({str(tmp_path)!r})\n{written}\ntime.sleep(600)")
    (tmp_path / RUN).mkdir(parents=True)
    process = EvaluateProcess(tmp_path / RUN, ["own"], device="cpu", timeout_seconds=60, trust={})
    before = dict(os.environ)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here"}
    try:
        process.start(4)
    finally:
        os.environ.clear()
        os.environ |= before
    deadline = time.monotonic() + 60
    while not told.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    nice, number, *variables = json.loads(told.read_text())
    assert nice == 19
    assert variables == [None, None, None, ""]
    assert process.outcome() is None
    process.stop()
    assert not psutil.pid_exists(number)


def test_the_model_of_a_killed_process_is_removed(tmp_path, stand_in):
    """The exported model that a killed run has left in the temporary folder is removed by the next evaluation."""
    stand_in(ANSWER)
    scratch = tmp_path / "scratch"
    (tmp_path / RUN).mkdir(parents=True)
    for number in (4, 8):
        process = EvaluateProcess(tmp_path / RUN, ["own"], device="cpu", timeout_seconds=60, scratch=scratch, trust={})
        process.start(number)
        child = process._process
        if number == 4:  # the run is killed, and its child as well
            child.wait(60)
            (scratch / f"holdfast-suite-{child.pid}-abc/model").mkdir(parents=True)
    assert not list(scratch.iterdir())
    process.stop()


def test_a_stopped_run_evaluates_at_its_next_start(tmp_path, stand_in):
    """What a stop interrupts is evaluated again by the next start, at the step of its own checkpoint."""
    (tmp_path / RUN).mkdir(parents=True)
    stand_in(f"open({str(tmp_path / RUN / 'STOP')!r}, 'w').close()\ntime.sleep(600)")
    process = train(tmp_path, "evaluation.harness.every=2", steps=100_000)  # stopped long before
    assert process.returncode == 0, process.stderr
    assert "asks for it" in process.stdout + process.stderr
    assert suites(tmp_path) == {}
    stopped = len(losses(tmp_path))
    assert stopped < 100_000
    stand_in(ANSWER)
    process = train(tmp_path, "evaluation.harness.every=0", steps=stopped + 2)
    assert process.returncode == 0, process.stderr
    assert min(suites(tmp_path)) == 2
    assert max(suites(tmp_path)) == stopped + 2


def test_a_process_ends_with_a_killed_run(tmp_path):
    """The command that evaluates ends by itself once the run that started it is gone."""
    code = (
        "import os, time\nfrom holdfast.bootstrap.process.launch import end_with_parent\n"
        "end_with_parent(os.getppid())\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {code!r}], stdout=subprocess.PIPE, text=True)\n"
        "print(child.stdout.readline(), end='', flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        number = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 60
    while is_running(number):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(number):
    """Return whether there is a process ``number`` that has not ended."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
