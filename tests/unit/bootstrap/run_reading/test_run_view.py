from __future__ import annotations

import errno
import json
import math
import os
from contextlib import closing

import psutil
import pytest

from holdfast.adapters.monitor.jsonl import JsonlMonitor
from holdfast.bootstrap.run_reading import run_events
from holdfast.bootstrap.run_reading.growing_file import GrowingRecords
from holdfast.bootstrap.run_reading.run_events import note_of
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.domain.errors import StateError
from tests.support.run_folders import STARTED, add_event, add_steps, hold, make_run


def dead_process():
    return next(pid for pid in range(4_000_000, 1, -1) if not psutil.pid_exists(pid))


def states(folder):
    view = RunView(folder)
    view.refresh()
    return view.summary()["state"]


def test_a_folder_without_a_run_is_refused(tmp_path):
    """The error names the folder and what to name."""
    with pytest.raises(StateError, match="is not a run folder"):
        RunView(tmp_path)


def test_looking_takes_no_lock(tmp_path, monkeypatch):
    """The lock of a run is never tried while its process is on this machine, so no start can meet a look."""
    folder = make_run(tmp_path / "run")
    hold(folder, dead_process())
    monkeypatch.setattr("holdfast.bootstrap.run_reading.run_state.is_locked", lambda _: pytest.fail("tried the lock"))
    assert states(folder) == "crashed"


def test_a_view_grows_with_its_run(tmp_path):
    """Each refresh brings new figures and events, and the version tells whether there were any."""
    folder = make_run(tmp_path / "run")
    hold(folder)
    view = RunView(folder)
    view.refresh()
    assert not view.refresh()
    version = view.version
    with closing(JsonlMonitor(folder / "metrics.jsonl")) as monitor:
        monitor.record(10, {"tokens": 2560, "loss": 3.25, "tokens_per_second": 512.0, "memory_bytes": 1e9})
        monitor.record(10, {"tokens": 2560, "eval_loss": 3.5})
    add_event(folder, "RunStarted", step=0, tokens=0, memory_limit=4_000_000_000, device="cpu", parameters=123, ranks=1)
    assert view.refresh()
    assert view.version > version
    found = view.summary()
    assert (found["step"], found["tokens"], found["loss"], found["eval_loss"]) == (10, 2560, 3.25, 3.5)
    assert (found["share"], found["memory_limit"], found["device"]) == (0.01, 4_000_000_000, "cpu")
    assert found["time_left"]["seconds"] == pytest.approx(990 * 256 / 512)
    assert "without saves" in found["time_left"]["base"]


def test_a_loss_that_is_no_number_is_not_hidden_by_an_earlier_one(tmp_path):
    """The figures are those of the last step and the last evaluation, also if these are not numbers."""
    folder = make_run(tmp_path / "run")
    with closing(JsonlMonitor(folder / "metrics.jsonl")) as monitor:
        monitor.record(0, {"tokens": 0, "eval_loss": math.nan})
    assert RunView(folder).read_all().summary()["best_eval_loss"] is None
    with closing(JsonlMonitor(folder / "metrics.jsonl")) as monitor:
        for step, loss in ((1, 3.0), (2, math.nan)):
            monitor.record(step, {"tokens": step, "loss": loss})
            monitor.record(step, {"tokens": step, "eval_loss": loss})
            monitor.record(step, {"suite/own/acc": 0.5})
    found = RunView(folder).read_all().summary()
    assert (found["loss"], found["eval_loss"], found["best_eval_loss"]) == (None, None, 3.0)


def test_the_best_evaluation_is_that_of_early_stopping(tmp_path):
    """By the metric of early stopping an evaluation with a higher loss may be the best; without it the loss decides."""
    chosen = {"recovery": {"early_stopping": {"patience": 3, "metric": "eval_reward_accuracy"}}}
    lines = [(1, 0.5, 0.25), (2, 0.7, 0.75), (3, 0.6, 0.75)]
    for name, settings, expected in (
        ("one", chosen, {"metric": "eval_reward_accuracy", "value": 0.75, "step": 2}),
        ("two", {}, {"metric": "eval_loss", "value": 0.5, "step": 1}),
    ):
        folder = make_run(tmp_path / name, settings=settings)
        records = [{"step": step, "eval_loss": loss, "eval_reward_accuracy": share} for step, loss, share in lines]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        assert RunView(folder).read_all().best_evaluation() == expected


def test_the_reason_of_a_failed_start_is_a_note(tmp_path):
    """A start that ended before it trained has no event; its error is among the events all the same."""
    folder = make_run(tmp_path / "run", start={"time": STARTED, "phase": "reading data", "error": "DataError: no text"})
    (note,) = RunView(folder).read_all().notes
    assert (note.level, note.text) == ("error", "the last start ended while it was reading data: DataError: no text")


def test_a_folder_that_cannot_be_read_for_a_moment_is_read_later(tmp_path, monkeypatch):
    """An error of the file system is shown as a problem while it lasts, and nothing is lost or doubled after it."""
    folder = make_run(tmp_path / "run")
    add_steps(folder, range(1, 4))
    view = RunView(folder).read_all()
    add_steps(folder, range(4, 6))
    add_event(folder, "RunStarted", step=0, tokens=0)
    for name in ("pread", "fstat"):
        with monkeypatch.context() as broken:
            broken.setattr(os, name, raise_stale)
            view.refresh()
            if name == "pread":
                assert "Stale file handle" in view.summary()["problem"]
    view.read_all()
    assert view.summary()["problem"] is None
    assert view.curves(["loss"])["loss"].step.tolist() == [1, 2, 3, 4, 5]
    assert len(view.notes) == 1


def raise_stale(*_):
    raise OSError(errno.ESTALE, "Stale file handle")


def test_each_event_is_put_into_words_once(tmp_path, monkeypatch):
    """A new event of a long run costs no more than itself: the notes of the earlier ones are kept."""
    folder = make_run(tmp_path / "run")
    view = RunView(folder)
    for step in range(3):
        add_event(folder, "RunStarted", step=step, tokens=0)
    view.refresh()
    seen = []
    monkeypatch.setattr(
        run_events,
        "note_of",
        lambda record, note_of=run_events.note_of: (seen.append(record["step"]), note_of(record))[1],
    )
    add_event(folder, "RunStarted", step=3, tokens=0)
    view.refresh()
    assert [note.step for note in view.notes] == [0, 1, 2, 3]
    assert seen == [3]


def test_the_time_left_rests_on_recent_steps(tmp_path):
    """With samples of time the rate is that of the current start, saves and evaluations included."""
    folder = make_run(tmp_path / "run")
    hold(folder)
    (folder / "metrics.jsonl").write_text('{"step": 500, "tokens": 5000, "loss": 3.0}\n')
    marks = [(1.0, 50.0, 90), (100.0, 110.0, 400), (100.0, 135.0, 500)]
    with (folder / "goodput.jsonl").open("w") as file:
        for began, time, step in marks:
            file.write(json.dumps({"began": began, "time": time, "step": step, "seconds": {"compute": 1}}) + "\n")
    view = RunView(folder)
    view.refresh()
    left = view.summary()["time_left"]
    assert left["seconds"] == pytest.approx(500 / 4)
    assert left["base"] == "4 steps/s over the last 25 s, saves and evaluations included"


def test_settings_have_their_origin(tmp_path):
    """Each setting has the origin that the start recorded, and the choice for auto with its reason."""
    folder = make_run(tmp_path / "run", origins={"run.name": "command line", "optimizer": "mine.yaml"})
    view = RunView(folder)
    view.refresh()
    found = {entry["name"]: entry for entry in view.settings()}
    assert found["run.name"]["origin"] == "command line"
    assert found["run.budget.steps"]["origin"] == "default"
    assert found["optimizer.learning_rate"] == {
        "name": "optimizer.learning_rate", "value": 1, "origin": "mine.yaml", "chosen": "2",
        "reason": "the formula says so"
    }  # fmt: skip
    make_run(folder)
    view.refresh()
    assert {entry["origin"] for entry in view.settings()} == {None}


def test_a_damaged_record_is_told(tmp_path):
    """A record that cannot be read is a problem with its sentence, and the last good one is shown on."""
    folder = make_run(tmp_path / "run")
    view = RunView(folder)
    view.refresh()
    (folder / "run.json").write_text("{")
    view.refresh()
    assert "is damaged" in view.summary()["problem"]
    assert view.summary()["budget"]["steps"] == 1000
    make_run(folder)
    view.refresh()
    assert view.summary()["problem"] is None


@pytest.mark.parametrize(
    ("record", "kind", "step", "level", "words"),
    [
        ({"event": "RunStarted", "step": 40, "tokens": 1}, "resume", 40, "info", "resumed at step 40"),
        (
            {"event": "MemoryExhausted", "step": 7, "tokens": 1, "micro_batch": 8, "message": "x"},
            "out of memory", 7, "warning", "step 8 does not fit into memory with micro-batches of 8 rows",
        ),
        (
            {"event": "RolledBack", "step": 20, "tokens": 1, "from_step": 33, "reason": "the loss jumped"},
            "roll-back", 33, "warning", "step 33 · ROLLED BACK to step 20: the loss jumped",
        ),
        (
            {"event": "RunFailed", "step": 9, "tokens": 1, "error": "StateError: the disk is full"},
            "failure", 9, "error", "failed after step 9: the disk is full",
        ),
        (
            {"event": "RunFailed", "step": 9, "tokens": 1, "error": "ZeroDivisionError: division by zero"},
            "failure", 9, "error", "failed after step 9: ZeroDivisionError: division by zero",
        ),
        (
            {"event": "CheckpointRejected", "name": "checkpoint-5", "reason": "wrong-hash", "location": "quarantine/x"},
            "checkpoint rejected", None, "error",
            "checkpoint-5 is damaged (wrong-hash): moved to quarantine/x; an older checkpoint is used, if there is one",
        ),
        (
            {"event": "SuiteFailed", "step": 9, "problem": "there is no task"},
            "suites failed", 9, "warning", "step 9 · NOT EVALUATED by suites, training continues: there is no task",
        ),
    ],
)  # fmt: skip
def test_an_event_is_a_sentence_and_a_mark(record, kind, step, level, words):
    """An event is described in the words of the console, at its step."""
    note = note_of({"time": STARTED, **record})
    assert (note.kind, note.step, note.level, note.text) == (kind, step, level, words)
    assert note.is_marked


def test_events_of_another_version_are_told():
    """An event that this version does not know, or with other fields, is told by its name and fields."""
    assert note_of({"event": "MoonRose", "step": 3, "phase": "full"}).text == "moon rose: step 3, phase full"
    assert note_of({"event": "RolledBack", "step": 3}).text == "rolled back: step 3"


def test_the_newest_records_of_a_long_file_are_kept(tmp_path):
    """A file with more records than are kept goes on being followed, by its newest ones."""
    path = tmp_path / "events.jsonl"
    records = GrowingRecords(path, most=5)
    for start in (0, 8):
        with path.open("a") as file:
            file.writelines(f'{{"step": {step}}}\n' for step in range(start, start + 8))
        assert records.poll()
        assert [record["step"] for record in records.records] == list(range(start + 3, start + 8))
    assert not records.poll()
    records.close()
