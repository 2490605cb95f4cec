"""The trackio tracker keeps the port's promises with the real library, and its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from holdfast.adapters.monitor.library_tracker import unescaped
from holdfast.adapters.monitor.trackio import RESERVED, trackio_tracker
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.monitor import EndState
from holdfast.ports.testing.monitor import described
from tests.support.slow_trackers import SlowTrackerContract

pytest.importorskip("trackio")


@pytest.mark.slow
class TestTrackioTracker(SlowTrackerContract):
    def new_tracker(self, folder):
        return trackio_tracker(folder=folder)

    def recorded(self, monitor, folder):
        return recorded(folder)

    def noted(self, tracker, folder):
        alerts = storage(folder).get_alerts("holdfast")
        return [(alert["step"], alert["text"]) for alert in alerts if alert["title"] in {"event", "sample"}]


@pytest.mark.slow
def test_a_killed_run_has_each_step_once(tmp_path):
    """Rows that were stored before a kill and are taken again stand there once, with their later values."""
    script = f"""
        from pathlib import Path
        from holdfast.adapters.monitor.trackio import trackio_tracker
        from holdfast.ports.testing.monitor import described
        tracker = trackio_tracker(folder=Path({str(tmp_path)!r}))
        tracker.begin(described(Path({str(tmp_path)!r})))
        for step in range(1, 6):
            tracker.record(step, {{"loss": float(step)}})
            if step == 3:
                tracker.flush()
        print("done", flush=True)
        input()
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "done\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    tracker = trackio_tracker(folder=tmp_path)
    tracker.begin(described(tmp_path))
    tracker.rewind(3)
    for step in (4, 5):
        tracker.record(step, {"loss": 10.0 * step})
    tracker.record(5, {"eval_loss": 2.0})
    tracker.finish(EndState.STOPPED)
    tracker.close()
    assert recorded(tmp_path) == [
        *((step, {"loss": float(step)}) for step in (1, 2, 3)),
        (4, {"loss": 40.0}), (5, {"loss": 50.0}), (5, {"eval_loss": 2.0}),
    ]  # fmt: skip


@pytest.mark.slow
def test_the_run_is_described(tmp_path):
    """The configuration has the settings, the versions of the data and the environment."""
    tracker = trackio_tracker(folder=tmp_path)
    tracker.begin(described(tmp_path))
    tracker.record(1, {"loss": 1.0})
    tracker.finish(EndState.FAILED)
    tracker.close()
    run = described(tmp_path)
    config = storage(tmp_path).get_run_config("holdfast", run=run.name, run_id=run.run_id)
    assert config["run"] == {"name": "a run", "seed": 0}
    assert config["data_versions"] == {"books": "v1", "": "v0"}
    assert config["num_ranks"] == 2
    ends = [alert["text"] for alert in storage(tmp_path).get_alerts("holdfast") if alert["title"] == "end"]
    assert ends == ["failed"]


def test_a_missing_package_is_told_in_one_sentence(monkeypatch):
    """Without the extra the error names the command that installs it."""
    monkeypatch.setattr("holdfast.adapters.monitor.library_tracker.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install \"holdfast-lm\[trackio\]\""):
        trackio_tracker()


def storage(folder):
    from trackio import sqlite_storage

    sqlite_storage.TRACKIO_DIR = folder  # read from the environment at the import
    return sqlite_storage.SQLiteStorage


def recorded(folder):
    logs = storage(folder).get_logs("holdfast", run_id=described(folder).run_id)
    return [
        (log.pop("step"), {unescaped(name, RESERVED): value for name, value in log.items() if name != "timestamp"})
        for log in logs
    ]
