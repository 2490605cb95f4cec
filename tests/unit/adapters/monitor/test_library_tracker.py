"""A library in a child process cannot hurt the process that calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from holdfast.adapters.monitor.library_tracker import LibraryTracker, escaped, unescaped
from holdfast.domain.errors import StateError
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import described

MODULE = "tests.support.fake_library"


def begun(folder, **options):
    tracker = LibraryTracker("fake", "json", MODULE, options)
    tracker.begin(described(folder))
    return tracker


def calls(folder):
    return [tuple(json.loads(line)) for line in (folder / "calls").read_text().splitlines()]


def test_calls_arrive_in_order(tmp_path, capfd):
    """Each call is made in the child, in order, and what the library prints appears nowhere."""
    tracker = begun(tmp_path)
    tracker.record(1, {"loss": 1.0, "tokens": 5})
    tracker.record(2, {})
    tracker.note(1, NoteKind.SAMPLE, "a\nb")
    tracker.rewind(0)
    tracker.flush()
    tracker.finish(EndState.STOPPED)
    tracker.close()
    tracker.close()
    tracker.record(3, {"loss": 1.0})
    assert calls(tmp_path)[1:] == [
        ("record", {"step": 1, "metrics": {"loss": 1.0, "tokens": 5}}),
        ("note", {"step": 1, "kind": "sample", "text": "a\nb"}),
        ("rewind", {"step": 0}),
        ("flush", {}),
        ("close", {"state": "stopped"}),
    ]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("behaviour", "words"), [("raise", "this library is broken"), ("die", "cause of death")])
def test_a_library_that_fails_is_told_once(tmp_path, behaviour, words):
    """``record`` raises once after a failure, and does nothing until ``rewind`` starts a new child."""
    tracker = begun(tmp_path, record=behaviour)
    with pytest.raises(StateError, match=words):
        tracker.record(1, {"loss": 1.0})
    tracker.record(2, {"loss": 1.0})
    with pytest.raises(StateError, match="has ended"):
        tracker.flush()
    tracker.rewind(0)
    tracker.record(1, {"loss": 2.0})
    tracker.close()
    made = [name for name, arguments in calls(tmp_path) if arguments != {"state": None} or behaviour == "die"]
    assert made == ["begin", "record", "begin", "rewind", "record", *(["close"] if behaviour == "die" else [])]


def test_the_output_of_a_library_cannot_fill_the_disk(tmp_path, monkeypatch):
    """What a library prints is limited to the newest lines, among which the cause of its failure is found."""
    monkeypatch.setattr("holdfast.adapters.shared.files.json_lines.MOST_BYTES", 20000)
    tracker = begun(tmp_path, record="chatter", flush="die")
    for step in range(1, 6):
        tracker.record(step, {"loss": 1.0})
    assert os.fstat(tracker._process._errors.fileno()).st_size < 300_000
    with pytest.raises(StateError, match="cause of death"):
        tracker.flush()
    tracker.close()


@pytest.mark.parametrize("held", [None, 3])
def test_the_step_that_a_library_holds_is_returned(tmp_path, held):
    """``rewind`` returns the step up to which the library has all metrics, None if it lacks none."""
    tracker = begun(tmp_path, held=held)
    assert tracker.rewind(5) == held
    tracker.close()
    assert tracker.rewind(5) is None


def test_a_late_answer_is_not_taken_for_that_of_the_next_call(tmp_path, monkeypatch):
    """After a note without an answer the child is given up, so that no flush counts which has failed."""
    tracker = begun(tmp_path, note="slow", flush="raise")
    monkeypatch.setattr("holdfast.adapters.monitor.library_tracker._SECONDS", 0.2)
    with pytest.raises(StateError, match="no answer"):
        tracker.note(1, NoteKind.SAMPLE, "text")
    monkeypatch.undo()
    with pytest.raises(StateError, match="has ended"):
        tracker.flush()
    tracker.close()


def test_metrics_after_a_failed_flush_are_missed(tmp_path):
    """After a failed ``flush`` the next ``record`` raises, so that the run sends the metrics again."""
    tracker = begun(tmp_path, flush="die")
    tracker.record(1, {"loss": 1.0})
    with pytest.raises(StateError):
        tracker.flush()
    with pytest.raises(StateError, match="has ended"):
        tracker.record(2, {"loss": 1.0})


def test_a_library_that_hangs_at_the_end_delays_nothing(tmp_path):
    """A process whose library hangs ends in its time with code 0, and the child ends soon after it."""
    script = f"""
        from pathlib import Path
        from holdfast.adapters.monitor.library_tracker import LibraryTracker
        from holdfast.application.handlers.monitor_thread import MonitorThread, close_all
        from holdfast.ports.testing.monitor import described
        tracker = LibraryTracker("fake", "json", {MODULE!r}, {{"close": "hang"}})
        thread = MonitorThread("fake", tracker)
        thread.begin(described(Path({str(tmp_path)!r})))
        thread.record(1, {{"loss": 1.0}})
        print(thread.settle(60), close_all([thread], 0.5), thread.monitor._process._process.pid, sep="|")
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100, check=True
    )
    settled, problems, child = process.stdout.strip().split("|")
    assert (settled, process.stderr) == ("True", "")
    assert "did not take its last metrics within" in problems
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_killed_process_closes_the_library(tmp_path):
    """If the training process is killed, the child makes the call ``close`` itself."""
    script = f"""
        import os
        from pathlib import Path
        from holdfast.adapters.monitor.library_tracker import LibraryTracker
        from holdfast.ports.testing.monitor import described
        tracker = LibraryTracker("fake", "json", {MODULE!r}, {{}})
        tracker.begin(described(Path({str(tmp_path)!r})))
        tracker.record(1, {{"loss": 1.0}})
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=60)
    deadline = time.monotonic() + 60
    while calls(tmp_path)[-1] != ("close", {"state": None}):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["", "_", "step", "step_", "_step", "_step__", "loss", "a/b.c", "\ud800"])
def test_names_that_are_taken_are_changed_reversibly(name):
    """A changed name is not a reserved one, and the inverse finds the name again."""
    reserved = ("", "step", "_step")
    changed = escaped(name, reserved)
    assert changed not in reserved
    assert unescaped(changed, reserved) == name.encode(errors="backslashreplace").decode()
