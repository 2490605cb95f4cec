"""The child process of a trial: how it ends, is started again, and is stopped; a script stands for training."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time

import pytest

from holdfast.bootstrap.operations.trial_process import TrialProcess, TrialRules
from holdfast.bootstrap.run_folder.run_lock import take_lock
from holdfast.bootstrap.run_folder.study_folder import StudyLayout, VerdictFile, claim_trial
from holdfast.domain.errors import DataError, StateError
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy
from holdfast.domain.tuning.trial import TrialEnd, TrialState, TrialVerdict

PRELUDE = """
import json, os, pathlib, signal, sys, time
run = pathlib.Path(sys.argv[1]); run.mkdir(exist_ok=True)
def event(name, **fields):
    with open(run / "events.jsonl", "a") as file:
        file.write(json.dumps({"event": name, **fields}) + "\\n")
def evaluate(step, loss):
    event("EvaluationCompleted", step=step, tokens=step * 10, loss=loss, bits_per_byte=loss)
def save(step):
    folder = run / "checkpoints" / f"checkpoint-{step}"; folder.mkdir(parents=True)
    (folder / "COMMIT").touch()
def fail(code, text):
    print(f"error: {text}", file=sys.stderr); sys.exit(code)
starts = run / "starts"; number = int(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text(str(number))
event("RunStarted", step=0, tokens=0)
"""


@pytest.fixture
def trial(tmp_path):
    """Return a function that opens trial 0, whose process runs a script; what is open is closed at the end."""
    opened, lines = [], []
    layout = StudyLayout(tmp_path)

    def make(script, **options):
        rules = TrialRules(
            "eval_loss", False, RestartPolicy(100, 3, 0.0, 0.0), 60.0, **{"grace_seconds": 30.0, **options}
        )
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(layout.trial(0))]
        process = TrialProcess(
            0, layout, claim_trial(tmp_path, 0), rules, lambda _: command, dict(os.environ), lines.append
        )
        opened.append(process)
        process.start({})
        return process

    make.lines = lines
    yield make
    for process in opened:
        process.close()


def end_of(process, seconds=60):
    """Return the end of a trial, with the measurements until then."""
    measured, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        measured += process.measurements()
        if (end := process.poll()) is not None:
            return end, measured + list(process.measurements())
        time.sleep(0.01)
    message = "the trial did not end"
    raise AssertionError(message)


def test_a_process_that_ends_well_completes_its_trial(trial, tmp_path):
    """The evaluations are returned, the last one is the value, and the output is in the log."""
    process = trial("print('hello'); evaluate(5, 3.0); evaluate(10, 2.0); event('RunFinished', step=10, tokens=100)")
    end, measured = end_of(process)
    assert end == TrialEnd(TrialState.COMPLETE, 2.0, 100)
    assert measured == [(5, 3.0), (10, 2.0)]
    assert StudyLayout(tmp_path).log(0).read_text() == "hello\n"


def test_a_process_that_dies_is_started_again(trial, tmp_path):
    """A killed process is started again as long as it makes progress, and the trial has failed once it does not."""
    process = trial("save(number) if number < 4 else None; os.kill(os.getpid(), signal.SIGKILL)")
    end, _ = end_of(process)
    assert end == TrialEnd(TrialState.FAILED, None, 0, "was killed by SIGKILL")
    assert (StudyLayout(tmp_path).trial(0) / "starts").read_text() == "6"
    assert any("its process was killed by SIGKILL; it is started again" in line for line in trial.lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_that_was_not_ours_is_no_end(trial, number):
    """A process that a signal from elsewhere has stopped is started again."""
    process = trial(f"sys.exit({128 + number}) if number == 1 else evaluate(5, 1.0)")
    assert end_of(process)[0].state is TrialState.COMPLETE


def test_refused_settings_fail_the_trial_at_once(trial, tmp_path):
    """A trial whose settings cannot be trained has failed with that sentence, without another start."""
    end, _ = end_of(trial("fail(2, 'the width is not divisible by the heads')"))
    assert end == TrialEnd(TrialState.FAILED, None, 0, "the width is not divisible by the heads")
    assert (StudyLayout(tmp_path).trial(0) / "starts").read_text() == "1"


def test_an_error_that_comes_again_fails_the_trial(trial, tmp_path):
    """A trial that ends with an error twice, without a checkpoint between, has failed with it."""
    end, _ = end_of(trial("fail(1, 'a step does not fit into memory')"))
    assert (end.state, end.note) == (TrialState.FAILED, "a step does not fit into memory")
    assert (StudyLayout(tmp_path).trial(0) / "starts").read_text() == "2"


@pytest.mark.parametrize(("code", "kind"), [(3, DataError), (4, StateError)])
def test_what_other_trials_would_meet_too_ends_the_study(trial, code, kind):
    """Data that cannot be read, and a disk that stays full, are errors of the study and not of the trial."""
    process = trial(f"fail({code}, 'the disk is full')")
    with pytest.raises(kind, match="the disk is full; the same command continues the study"):
        end_of(process)


def test_a_trial_waits_for_the_process_that_trains_it(trial, tmp_path):
    """While another process trains in the folder, none is started, and one line says which."""
    folder = StudyLayout(tmp_path).trial(0)
    lock = take_lock(folder)
    process = trial("evaluate(5, 1.0)")
    for _ in range(3):
        assert process.poll() is None
    assert not (folder / "starts").exists()
    assert [line for line in trial.lines if f"process {os.getpid()}" in line] == trial.lines
    assert len(trial.lines) == 1
    os.close(lock)
    assert end_of(process)[0].state is TrialState.COMPLETE


def test_a_stop_is_passed_on(trial, tmp_path):
    """A stop sends the signal to the process, which has the grace period to end."""
    process = trial("signal.signal(signal.SIGTERM, lambda *_: (save(7), sys.exit(143))); save(1); time.sleep(60)")
    started = StudyLayout(tmp_path).trial(0) / "checkpoints/checkpoint-1"
    while not started.exists():
        process.poll()
    process.request_stop(signal.SIGTERM)
    while not process.has_stopped():
        time.sleep(0.01)
    assert (started.parent / "checkpoint-7").exists()


def test_a_process_that_does_not_stop_is_killed(trial, tmp_path):
    """After the grace period a process that ignores the stop is killed."""
    limits = {"grace_seconds": 0.2, "margin_seconds": 0.0}
    process = trial("signal.signal(signal.SIGTERM, signal.SIG_IGN); save(1); time.sleep(60)", **limits)
    while not (StudyLayout(tmp_path).trial(0) / "checkpoints/checkpoint-1").exists():
        process.poll()
    process.request_stop()
    deadline = time.monotonic() + 60
    while not process.has_stopped():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert any("has not ended within 0.2 s of the stop: killed" in line for line in trial.lines)


def test_a_verdict_is_written_once(trial, tmp_path):
    """The first verdict on a step is in the run folder, a second one changes nothing, and a new object knows it."""
    process = trial("")
    process.answer(TrialVerdict(5))
    process.answer(TrialVerdict(10, "pruned at step 10"))
    process.answer(TrialVerdict(5, "another"))
    process.close()
    again = trial("")
    again.answer(TrialVerdict(10))
    assert VerdictFile(StudyLayout(tmp_path).trial(0)).all() == [TrialVerdict(5), TrialVerdict(10, "pruned at step 10")]


def test_a_claim_is_for_one(tmp_path):
    """A trial that is claimed cannot be claimed again until the first claim is released."""
    first = claim_trial(tmp_path, 3)
    assert first is not None
    assert claim_trial(tmp_path, 3) is None
    os.close(first)
    second = claim_trial(tmp_path, 3)
    assert second is not None
    os.close(second)
