"""The monitors of a run, opened from its settings."""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace

import pytest

from holdfast.bootstrap.stages.attach.monitors import begin_monitors, note_of, open_monitors, record_metrics
from holdfast.bootstrap.stages.open_run.screen import Screen
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import StateError
from holdfast.domain.events import HandlerFailed
from holdfast.ports.optimizer import Hardware


@contextmanager
def opened(folder, monitor):
    """Give the threads of ``metrics.jsonl`` and of ``monitor`` in the run ``folder``, which begin a start."""
    settings = load_settings([], [f"run.dir={folder}", f"monitors=[jsonl, {monitor}]"], {}).settings
    problems = []
    with ExitStack() as stack:
        threads = open_monitors({}, settings, Screen(report=problems.append), stack)
        begin_monitors(threads, settings, "id", {}, 1)
        yield threads
    assert not [line for line in problems if "failed" in line]


def record(threads, steps):
    """Let the monitors record a loss for each of ``steps``, and make them durable."""
    for step in steps:
        for thread in threads:
            thread.record(step, {"loss": float(step)})
            assert thread.settle(60)
    threads[1].flush(steps[-1])
    assert threads[1].settle(60)


def test_another_file_of_a_tracker_gets_all_steps(tmp_path):
    """A run whose tracker has another file than before sends it the steps of earlier starts too."""
    run = tmp_path / "run"
    with opened(run, f"{{kind: sqlite, path: {tmp_path}/first.sqlite}}") as threads:
        record(threads, [1, 2, 3])
    with opened(run, f"{{kind: sqlite, path: {tmp_path}/second.sqlite}}") as threads:
        threads[1].rewind(3)
        record(threads, [4])
    for name, steps in (("first", [1, 2, 3]), ("second", [1, 2, 3, 4])):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as connection:
            assert [step for (step,) in connection.execute("SELECT step FROM metrics ORDER BY step")] == steps
            assert connection.execute("SELECT name FROM metric_runs").fetchall() == [("run",)]


def test_a_tracker_is_told_what_the_folder_is_a_copy_of(tmp_path):
    """The description of a run has the ids of the runs that its folder was copied from, oldest first."""
    described = []
    thread = SimpleNamespace(begin=described.append)
    settings = load_settings([], [f"run.dir={tmp_path}"], {}).settings
    history = [{"copied_from": "/a", "id": "first"}, {"changed": []}, {"copied_from": "/b", "id": "second"}]
    for record in ({"history": history}, {}):
        begin_monitors([thread], settings, "third", record, 1)
    assert [run.copied_from for run in described] == [["first", "second"], []]


def test_counters_for_prometheus_begin_with_the_process(tmp_path):
    """A run that continues does not count the steps of its earlier starts for Prometheus, which counted them then."""
    parser = pytest.importorskip("prometheus_client.parser", reason="it comes with the extra `prometheus`")
    run, textfile = tmp_path / "run", tmp_path / "run.prom"
    run.mkdir()
    lines = [json.dumps({"step": step, "loss": 1.0, "data_wait_seconds": 2.0}) for step in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with opened(run, f"{{kind: prometheus, port: null, textfile: {textfile}}}") as threads:
        threads[1].rewind(3)
        record(threads, [4])
    families = parser.text_string_to_metric_families(textfile.read_text())
    found = {family.name: family.samples[0].value for family in families}
    assert (found["holdfast_steps"], found["holdfast_data_wait_seconds"]) == (1.0, 0.0)


def test_a_note_for_trackers_has_no_secrets():
    """The password in a URL that an error names does not reach a tracker."""
    error = StateError("https://me:hunter22@store/x cannot be reached")
    text = note_of(HandlerFailed("StepCompleted", "a handler", error))
    assert "cannot be reached" in text
    assert "hunter22" not in text


@pytest.mark.parametrize("arithmetic", [None, 60.0])
def test_a_figure_that_is_not_known_is_said_once(arithmetic):
    """Where the peak of the devices is known and the arithmetic of the model is not, the run says that MFU lacks."""
    said, settings = [], load_settings([], [], {}).settings
    device = SimpleNamespace(hardware=Hardware("device", "bf16", 10, arithmetic, peak_flops=1.0))
    record_metrics([], settings, device, None, [], said.append).close()
    assert [line for line in said if "mfu" in line] == said
    assert len(said) == (arithmetic is None)
