"""The tracker for Prometheus keeps the port's promises, and offers figures that Prometheus' own parser reads."""

from __future__ import annotations

import math
import socket
import sys
import urllib.request
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from holdfast.adapters.monitor.prometheus import (
    COUNTERS,
    EVENTS,
    GAUGES,
    OTHER_HELP,
    ExportedFigures,
    PrometheusTracker,
    labelled_gauge,
    other_gauge,
)
from holdfast.adapters.shared.sql.database import storable_name
from holdfast.domain import events
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import EndState
from holdfast.ports.testing.monitor import TrackerContract, described


def fetch(tracker, accept="text/plain"):
    request = urllib.request.Request(tracker.address, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def values(text, parser=parse):
    """Return the values of all samples by name and own labels."""
    found = {}
    for family in parser(text):
        for sample in family.samples:
            own = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in {"run", "run_id", "rank"}))
            key = (sample.name, own)
            assert key not in found
            found[key] = sample.value
    return found


def value(text, name, **labels):
    return values(text).get((f"holdfast_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def tracker(tmp_path):
    """Yield a tracker on any free port that has begun."""
    tracker = PrometheusTracker("127.0.0.1", 0, tmp_path / "run.prom")
    tracker.begin(described(tmp_path))
    yield tracker
    tracker.close()


class TestPrometheusTracker(TrackerContract):
    is_prompt = True
    forgets = False
    outlives = False

    def new_tracker(self, folder):
        return PrometheusTracker("127.0.0.1", 0, folder / "run.prom")

    def recorded(self, monitor, folder):
        return None

    def noted(self, tracker, folder):
        return None


def test_endpoint_and_file_say_the_same(tracker, tmp_path):
    """Both have the last values, names with units, a help text for each name, and the labels of the run."""
    tracker.record(7, {"loss": 2.5, "tokens": 4096, "lr": 1e-3, "data_wait_seconds": 0.25, "memory_bytes": 1 << 30})
    tracker.flush()
    text = fetch(tracker)
    assert text == (tmp_path / "run.prom").read_text()
    assert value(text, "loss") == 2.5
    assert value(text, "learning_rate") == 1e-3
    assert value(text, "memory_bytes") == 1 << 30
    assert value(text, "trained_tokens") == 4096
    assert value(text, "step") == 7
    assert value(text, "steps_total") == 1
    assert value(text, "data_wait_seconds_total") == 0.25
    assert all(family.documentation for family in parse(text))
    labels = [sample.labels for family in parse(text) for sample in family.samples]
    own = {"run": "a run", "run_id": described(tmp_path).run_id, "rank": "0"}
    assert all(own.items() <= found.items() for found in labels)
    strict = values(fetch(tracker, "application/openmetrics-text; version=1.0.0"), parse_openmetrics)
    assert strict == values(text)


def test_the_help_of_other_figures_is_their_meaning():
    """A figure that keeps its own name has its meaning in the catalog of metrics as help, any other a general one."""
    figures = ExportedFigures()
    figures.begin(1, 0.0)
    figures.record(1, {"expert_load_min": 0.5, "reward_margin": 0.1, "odd name": 1.0}, 1.0)
    helps = {family.name: family.help for family in figures.families()}
    assert helps["holdfast_expert_load_min"].startswith("Tokens of the least busy expert of any layer")
    assert helps["holdfast_reward_margin"].endswith("only with data.task=preference.")
    assert helps["holdfast_odd_name"] == OTHER_HELP


def test_not_finite_values_are_offered(tracker):
    """NaN and the infinities are values that Prometheus reads."""
    tracker.record(1, {"loss": math.nan, "grad_norm": math.inf, "eval_loss": -math.inf, "tokens": math.nan})
    text = fetch(tracker)
    assert math.isnan(value(text, "loss"))
    assert value(text, "gradient_norm") == math.inf
    assert value(text, "eval_loss") == -math.inf
    assert value(text, "tokens_total") == 0


@settings(max_examples=25)
@given(names=st.lists(st.text() | st.sampled_from(["a b", "a_b", "a.b", "step", "steps", "x_total", "x_total_value"])))
def test_every_name_is_a_series_of_its_own(names):
    """Metrics with any names are read back by both parsers, and no two are the same series."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

    from holdfast.adapters.monitor.prometheus import FigureCollector

    odd = [name for name in dict.fromkeys(names) if name not in COUNTERS | GAUGES and labelled_gauge(name) is None]
    figures = ExportedFigures()
    figures.begin(1, 0.0)
    figures.record(1, {name: float(number) for number, name in enumerate(odd)}, 1.0)
    registry = CollectorRegistry()
    registry.register(FigureCollector(figures, {"run": "a", "run_id": "b", "rank": "0"}))
    strict = values(generate_openmetrics(registry).decode(), parse_openmetrics)
    found = values(generate_latest(registry).decode())
    assert found == strict
    for number, name in enumerate(odd):
        exported, is_changed = other_gauge(name)
        with_label = [key for key in found if key[0] == f"holdfast_{exported}" and found[key] == number]
        assert with_label
        assert (
            not is_changed or not name or any(dict(own).get("metric") == storable_name(name) for _, own in with_label)
        )


def test_counters_never_fall():
    """Totals of the run add their differences, also across a roll-back, and totals of the process start again."""
    figures = ExportedFigures()
    figures.begin(1, 0.0)
    figures.rewind(0)

    def totals():
        return {family.name: family.samples[0][1] for family in figures.families()}

    for step, tokens in ((1, 100), (2, 200), (3, 300)):
        figures.record(step, {"tokens": tokens, "bytes_read": 10 * step, "data_wait_seconds": 0.5, "rollbacks": 0}, 1.0)
    figures.rewind(1)
    assert totals()["holdfast_tokens_total"] == 300
    figures.record(2, {"tokens": 200, "bytes_read": 5, "data_wait_seconds": 0.5, "rollbacks": 1}, 2.0)
    figures.record(3, {"tokens": 300, "bytes_read": 6, "data_wait_seconds": 0.5, "rollbacks": 1}, 3.0)
    found = totals()
    assert found["holdfast_tokens_total"] == 400
    assert found["holdfast_read_bytes_total"] == 36
    assert found["holdfast_data_wait_seconds_total"] == 2.5
    assert found["holdfast_rollbacks_total"] == 1
    assert found["holdfast_steps_total"] == 5


def test_a_resumed_process_counts_from_its_first_step():
    """Tokens of earlier processes are not counted again; the gauge has the total of the run."""
    figures = ExportedFigures()
    figures.begin(1, 0.0)
    figures.rewind(500)
    figures.record(501, {"tokens": 50_100}, 1.0)
    figures.record(502, {"tokens": 50_200}, 2.0)
    found = {family.name: family.samples[0][1] for family in figures.families()}
    assert (found["holdfast_tokens_total"], found["holdfast_trained_tokens"]) == (100, 50_200)


def test_a_roll_back_removes_the_values_of_later_steps(tracker):
    """After ``rewind`` the endpoint has no value of a later step, and those of earlier steps remain."""
    tracker.record(5, {"eval_loss": 3.0})
    tracker.record(6, {"loss": 2.0})
    tracker.rewind(5)
    text = fetch(tracker)
    assert (value(text, "loss"), value(text, "eval_loss"), value(text, "step")) == (None, 3.0, 5)


def test_the_time_of_the_last_step(tmp_path):
    """The time is that of the start before the first step, and an evaluation does not change it."""
    now = [1000.0]
    tracker = PrometheusTracker("127.0.0.1", None, tmp_path / "a.prom", clock=lambda: now[0])
    tracker.begin(described(tmp_path))

    def seen():
        tracker.flush()
        return value((tmp_path / "a.prom").read_text(), "last_step_timestamp_seconds")

    assert seen() == 1000
    for time, step, metrics in ((1010, 1, {"loss": 1.0}), (1020, 1, {"eval_loss": 1.0}), (1030, 2, {"loss": 1.0})):
        now[0] = time
        tracker.record(step, metrics)
    assert seen() == 1030
    now[0] = 1040
    tracker.record(2, {"eval_loss": 1.0})
    tracker.record(1, {"suite/boolq/acc": 0.5})
    assert seen() == 1030
    tracker.close()


def test_sets_and_suites_are_labels(tracker):
    """Results of a held-out set and of a task are series of one name each, with the parts of their names as labels."""
    tracker.record(5, {"eval_loss/books": 2.0, "eval_loss/a/b": 3.0, "suite/boolq/acc,none": 0.5, "suite/odd": 1.0})
    text = fetch(tracker)
    assert value(text, "eval_set_loss", set="books") == 2.0
    assert value(text, "eval_set_loss", set="a/b") == 3.0
    assert value(text, "suite_result", task="boolq", result="acc,none") == 0.5
    assert value(text, "suite_odd", metric="suite/odd") == 1.0


def test_events_are_counted_by_kind(tracker):
    """The counters of events exist before the first event, so that it is an increase."""
    assert value(fetch(tracker), "events_total", event="CheckpointFailed") == 0
    tracker.event(1, "CheckpointFailed", "disk full")
    tracker.event(2, "CheckpointFailed", "disk full")
    tracker.event(2, "Unheard", "of")
    text = fetch(tracker)
    assert value(text, "events_total", event="CheckpointFailed") == 2
    assert value(text, "events_total", event="Unheard") == 1


def test_the_counted_events_are_events():
    """Each kind that is counted from the start is a class in ``domain/events.py``."""
    assert EVENTS
    assert [name for name in EVENTS if not issubclass(getattr(events, name, int), events.Event)] == []


@pytest.mark.parametrize("state", list(EndState))
def test_the_file_stays_with_the_end_of_the_run(tracker, tmp_path, state):
    """After the end the file has the last values and the state, and the port is free again."""
    port = int(tracker.address.rpartition(":")[2].partition("/")[0])
    tracker.record(3, {"loss": 2.0})
    tracker.finish(state)
    tracker.close()
    text = (tmp_path / "run.prom").read_text()
    states = {name: value(text, "run_state", state=name) for name in ("running", "finished", "stopped", "failed")}
    assert states == {name: float(name == state) for name in states}
    assert value(text, "loss") == 2.0
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_a_port_in_use_is_one_sentence():
    """The constructor names the port; a tracker that may open later does so at a flush."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StateError, match=f"the port {port} of 127.0.0.1 cannot be used") as error:
            PrometheusTracker("127.0.0.1", port)
        assert "\n" not in str(error.value)
        tracker = PrometheusTracker("127.0.0.1", port, opens_at_once=False)
        with pytest.raises(StateError, match="already in use"):
            tracker.flush()
    assert tracker.address is None
    tracker.flush()
    assert tracker.address == f"http://127.0.0.1:{port}/metrics"
    tracker.close()


def test_a_file_that_cannot_be_written_is_a_named_error(tmp_path):
    """A path below a file raises ``StateError``, which names it."""
    (tmp_path / "file").touch()
    tracker = PrometheusTracker("127.0.0.1", None, tmp_path / "file" / "run.prom")
    tracker.begin(described(tmp_path))
    with pytest.raises(StateError, match=r"run\.prom"):
        tracker.flush()


def test_a_missing_package_is_told_in_one_sentence(monkeypatch):
    """Without the extra the error names the command that installs it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install \"holdfast-lm\[prometheus\]\""):
        PrometheusTracker("127.0.0.1", 0)


def test_a_registry_of_the_host_offers_the_figures_of_the_last_run(tmp_path):
    """They are there beside those of the host, also after the end of the run, until another run begins."""
    registry = CollectorRegistry(auto_describe=True)
    Counter("requests", "Of the host.", registry=registry).inc()
    for name in ("first", "second"):
        tracker = PrometheusTracker(registry=registry)
        tracker.begin(replace(described(tmp_path), name=name))
        tracker.record(3, {"loss": 2.5})
        tracker.finish(EndState.FINISHED)
        tracker.close()
        text = generate_latest(registry).decode()
        assert value(text, "loss") == 2.5
        assert value(text, "run_state", state="finished") == 1
        assert f'run="{name}"' in text
        assert "requests_total 1.0" in text
    assert 'run="first"' not in text
    assert tracker.address is None
