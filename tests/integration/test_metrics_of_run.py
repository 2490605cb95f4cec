"""A run offers its metrics to Prometheus and stores them in SQL, as ``metrics.jsonl`` has them."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.attach.monitors import open_prometheus
from holdfast.configs.sections.monitors import PrometheusMonitorSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from tests.support.command_line import corpus, run_here, tiny


@pytest.fixture
def taken_port():
    """Yield a port that another program has."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def of_lines(folder):
    """Return the values in ``metrics.jsonl`` by step and name."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {(r["step"], name): float(value) for r in records for name, value in r.items() if name != "step"}


def test_a_database_that_was_removed_gets_all_steps_again(tmp_path):
    """A file of a tracker that is gone begins anew with the metrics of all earlier starts."""
    settings = [*tiny(corpus(tmp_path)), "monitors=[jsonl, sqlite]", "evaluation.every=0"]
    for steps in (3, 6):
        (tmp_path / "runs/default/metrics.sqlite").unlink(missing_ok=True)
        trained = run_here("train", *settings, f"run.budget.steps={steps}", cwd=tmp_path)
        assert trained.returncode == 0, trained.stderr
    with closing(sqlite3.connect(tmp_path / "runs/default/metrics.sqlite")) as connection:
        rows = connection.execute("SELECT DISTINCT step FROM metrics ORDER BY step").fetchall()
    assert rows == [(step,) for step in sorted({step for step, _ in of_lines(tmp_path / "runs/default")})]


def test_every_step_is_in_each_database_once(tmp_path, postgres, monkeypatch):
    """After a run that was continued, both databases have the values of ``metrics.jsonl``, and the file the last."""
    import psycopg

    dsn = postgres.new_database()
    monkeypatch.setenv("METRICS_DSN", dsn)
    monitors = (
        "[jsonl, sqlite, {kind: postgres, dsn: 'env:METRICS_DSN'}, {kind: prometheus, port: 0, textfile: a.prom}]"
    )
    settings = [*tiny(corpus(tmp_path)), f"monitors={monitors}", "evaluation.every=3"]
    for steps in (3, 6):
        trained = run_here("train", *settings, f"run.budget.steps={steps}", cwd=tmp_path)
        assert trained.returncode == 0, trained.stderr
        assert "metrics for Prometheus: http://127.0.0.1:" in trained.stderr
    expected = of_lines(tmp_path / "runs/default")
    assert {step for step, _ in expected} == set(range(7))
    with closing(sqlite3.connect(tmp_path / "runs/default/metrics.sqlite")) as connection:
        rows = connection.execute("SELECT step, name, value FROM metrics").fetchall()
        notes = connection.execute("SELECT text FROM metric_notes").fetchall()
    assert {(step, name): value for step, name, value in rows} == expected
    assert len(rows) == len(expected)
    assert any("resumed at step 3" in text for (text,) in notes)
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT step, name, value FROM holdfast.metrics").fetchall()
        runs = connection.execute("SELECT run, state FROM holdfast.metric_runs").fetchall()
    assert {(step, name): value for step, name, value in rows} == expected
    assert len(rows) == len(expected)
    assert runs == [(json.loads((tmp_path / "runs/default/run.json").read_text())["id"], "finished")]
    offered = {family.name: family.samples[0].value for family in parse((tmp_path / "a.prom").read_text())}
    assert offered["holdfast_loss"] == expected[6, "loss"]
    assert offered["holdfast_eval_loss"] == expected[6, "eval_loss"]
    assert offered["holdfast_step"] == 6
    assert offered["holdfast_memory_limit_bytes"] == expected[6, "memory_limit_bytes"] > expected[6, "memory_bytes"]


def test_a_new_run_whose_port_is_taken_ends_at_its_start(tmp_path, taken_port):
    """The run ends with exit code 2 and one sentence, before any step."""
    monitors = f"monitors=[{{kind: prometheus, port: {taken_port}}}]"
    trained = run_here("train", *tiny(corpus(tmp_path)), monitors, cwd=tmp_path)
    assert trained.returncode == 2
    assert f"the port {taken_port} of 127.0.0.1 cannot be used for Prometheus" in trained.stderr


def test_a_run_with_checkpoints_continues_without_its_port(tmp_path, taken_port):
    """A run that has checkpoints is not ended by a port that another program has taken meanwhile."""
    section, layout = PrometheusMonitorSettings(port=taken_port), RunLayout(tmp_path)
    with pytest.raises(ConfigurationError, match=str(taken_port)):
        open_prometheus(section, layout, pytest.fail)
    layout.checkpoint(5).mkdir(parents=True)
    with closing(open_prometheus(section, layout, pytest.fail)) as tracker:
        assert tracker.address is None


def test_prometheus_needs_a_way_out():
    """A monitor with neither endpoint nor file is refused by the settings."""
    with pytest.raises(ConfigurationError, match="needs a port or a textfile"):
        load_settings([], ["monitors=[{kind: prometheus, port: null}]"], {})
    assert load_settings([], ["monitors=[prometheus]"], {}).settings.monitors[0].port == 19100
