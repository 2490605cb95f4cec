"""Holdfast inside another program."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from importlib.metadata import EntryPoint

import pytest
import torch
from command_line import ROOT, corpus, environment, tiny

from adapters.event_bus.memory import MemoryEventBus
from bootstrap import build
from configs.layers import load_settings
from domain.errors import ConfigurationError
from domain.events import RunFinished, RunStarted, StepCompleted
from examples.sqlite_data_source import SqliteDataSource
from ports.testing.data_source import DataSourceContract


def settings_of(home, *more):
    """Return the settings of a tiny run below ``home``."""
    overrides = tiny(home / "corpus.jsonl", f"run.dir={home / 'run'}", "run.budget.steps=4", "monitors=[]", *more)
    return load_settings([], overrides, {}).settings


@pytest.fixture
def home(tmp_path):
    """Return a folder with a corpus."""
    corpus(tmp_path)
    return tmp_path


def table(path, rows=None):
    """Write an SQLite table of documents, as (source, text), from two sources if not told."""
    words = random.Random(0)
    if rows is None:
        rows = [("ab"[number % 2], " ".join(words.choices(["one", "two", "four"], k=60))) for number in range(60)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, source TEXT, text TEXT)")
        database.executemany("INSERT INTO documents (source, text) VALUES (?, ?)", rows)
    return path


def example(name, *arguments):
    """Run an example as its docstring says."""
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=55, check=False)


def test_the_service_example_trains_and_stops(home):
    """The embedding example trains in a thread, stops when asked, and leaves a checkpoint."""
    overrides = tiny(home / "corpus.jsonl", "run.budget.steps=100000", "state_store.every=0")
    process = example("embedded_service.py", str(home / "run"), *overrides)
    assert process.returncode == 0, process.stderr
    assert "stopped after step" in process.stdout
    assert list((home / "run/checkpoints").iterdir())


def test_the_outside_adapter_example_trains(tmp_path):
    """The example with a data source of its own trains on a database."""
    overrides = [text for text in tiny(tmp_path / "none") if not text.startswith("data.path")]
    overrides = ["data.kind=python_library" if text == "data.kind=files" else text for text in overrides]
    process = example(
        "sqlite_data_source.py", str(table(tmp_path / "t.db")), str(tmp_path / "run"), *overrides, "run.budget.steps=3"
    )
    assert process.returncode == 0, process.stderr
    assert "trained 3 steps" in process.stdout


class TestSqliteDataSource(DataSourceContract):
    """The example's adapter keeps the port's promises, by the suite that ships with holdfast."""

    @pytest.fixture
    def path(self, tmp_path):
        return str(table(tmp_path / "t.db"))

    @pytest.fixture
    def source(self, path):
        return SqliteDataSource(path)

    @pytest.fixture
    def reopen(self, path):
        return lambda: SqliteDataSource(path)

    @pytest.fixture
    def change(self, path):
        def write():
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("UPDATE documents SET text = 'other' WHERE id = 1")

        return write

    @pytest.fixture
    def damaged(self, tmp_path):
        return SqliteDataSource(str(table(tmp_path / "d.db", [("a", "good"), ("a", None)]))), 1

    @pytest.fixture
    def empty(self, tmp_path):
        return SqliteDataSource(str(table(tmp_path / "e.db", [])))


def test_two_runs_in_one_process_do_not_touch_each_other(home):
    """A run gives the same losses after another run of another precision as before it, and leaves no trace in torch."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    losses: dict[str, list[float]] = {}
    for name, precision in (("first", "fp32"), ("between", "bf16"), ("second", "fp32")):
        run = build(settings_of(home, f"run.dir={home / name}", f"optimizer.precision={precision}"))
        run.subscribe(StepCompleted, lambda event, name=name: losses.setdefault(name, []).append(event.outcome.loss))
        assert run.run().step == 4
    assert losses["first"] == losses["second"]
    assert losses["first"] != losses["between"]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_second_run_at_the_same_time_is_refused(home):
    """While one run trains in a thread, another one in the process is refused in one sentence; later it may run."""
    first, second = (build(settings_of(home, f"run.dir={home / name}")) for name in ("first", "second"))
    refusals = []

    def try_another(_):
        with pytest.raises(ConfigurationError, match="another run is training in this process") as caught:
            second.run()
        refusals.append(caught.value)

    first.subscribe(RunStarted, try_another)
    thread = threading.Thread(target=first.run)
    thread.start()
    thread.join()
    assert len(refusals) == 1
    assert second.run().step == 4


def test_a_host_stops_a_run_before_it_began(home):
    """A stop that is asked for before ``run`` ends the run at its first boundary."""
    run = build(settings_of(home))
    run.request_stop("never mind")
    assert run.run().step == 0
    assert run.stopped_by is not None
    assert run.stopped_by.reason == "never mind"


def test_a_part_is_replaced_by_name(home):
    """An override takes the place of the configured adapter; a name that no part has is refused."""
    bus = MemoryEventBus()
    build(settings_of(home), event_bus=bus).run()
    assert isinstance(bus.published[-1], RunFinished)
    with pytest.raises(ConfigurationError, match="evnt_bus"):
        build(settings_of(home, f"run.dir={home / 'other'}"), evnt_bus=bus).run()


class ColumnSource(SqliteDataSource):
    """What the entry point of the next test names."""


def counted(bus, inbox, *, into):
    """Subscribe an outside handler that counts steps in the list named ``into``."""
    assert not inbox
    bus.subscribe(StepCompleted, lambda _: COUNTS[into].append(1))


COUNTS: dict[str, list[int]] = {"steps": []}


def test_outside_adapters_and_handlers_come_by_entry_point(tmp_path, monkeypatch):
    """Entry points ``holdfast.data_source`` and ``holdfast.handler`` are loaded by the kind that the settings name."""
    points = {
        "holdfast.data_source": [EntryPoint("table", f"{__name__}:ColumnSource", "holdfast.data_source")],
        "holdfast.handler": [EntryPoint("counter", f"{__name__}:counted", "holdfast.handler")],
    }
    monkeypatch.setattr("bootstrap.plugins.entry_points", lambda group: points.get(group, []))
    corpus(tmp_path)
    (tmp_path / "plug.yaml").write_text(
        f"data: {{kind: table, options: {{path: {table(tmp_path / 't.db')}}}}}\n"
        "handlers: [{kind: counter, options: {into: steps}}]\n"
    )
    overrides = [text for text in tiny(tmp_path / "none") if not text.startswith(("data.path", "data.kind"))]
    more = [f"run.dir={tmp_path / 'run'}", "run.budget.steps=3", "monitors=[]"]
    settings = load_settings([tmp_path / "plug.yaml"], [*overrides, *more], {}).settings
    COUNTS["steps"].clear()
    assert build(settings).run().step == 3
    assert COUNTS["steps"] == [1, 1, 1]


def test_an_unknown_kind_names_the_nearest(home):
    """A kind that neither the core nor an installed package has is refused with what there is."""
    with pytest.raises(ConfigurationError, match="postgres") as caught:
        build(settings_of(home, "state_store.kind=postgres")).run()
    assert "disk" in str(caught.value)
