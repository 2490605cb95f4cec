"""Holdfast inside another program."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from examples.sqlite_data_source import SqliteDataSource
from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.bootstrap import build
from holdfast.bootstrap.cli.summary import Report
from holdfast.bootstrap.operations.explain import explain
from holdfast.bootstrap.operations.list_runs import list_runs
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import Evaluate, SaveCheckpoint
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.events import (
    CheckpointSaved,
    CheckpointStarted,
    DataEnded,
    EvaluationCompleted,
    EvaluationProgressed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
)
from holdfast.domain.training.step_outcome import Progress
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.forwarding.state_store import ForwardingStateStore
from holdfast.ports.monitor import Monitor
from holdfast.ports.testing.data_source import DataSourceContract
from tests.support.command_line import ROOT, SAME_RHYTHM, corpus, environment, tiny


def settings_of(home, *more):
    """Return the settings of a tiny run below ``home``."""
    overrides = tiny(home / "corpus.jsonl", f"run.dir={home / 'run'}", "run.budget.steps=4", "monitors=[]", *more)
    return load_settings([], overrides, {}).settings


@pytest.fixture
def home(tmp_path):
    """Return a folder with a corpus."""
    corpus(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_lines_of_the_readme_train(tmp_path):
    """The program that README.md prints trains on the texts beside it, to the step that it prints."""
    (tmp_path / "texts").mkdir()
    corpus(tmp_path / "texts")
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    home = environment() | {"HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=home, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("\ntrained to step 20\n")


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
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_the_service_example_trains_and_stops(home):
    """The embedding example trains in a thread, stops when asked, and leaves a checkpoint."""
    overrides = tiny(home / "corpus.jsonl", "run.budget.steps=100000", "state_store.every=0")
    process = example("embedded_service.py", str(home / "run"), *overrides)
    assert process.returncode == 0, process.stderr
    assert "stopped after step" in process.stdout
    assert list((home / "run/checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedded_service.py", "sqlite_data_source.py"])
def test_an_example_without_arguments_says_what_it_takes(name):
    """A line of usage and the exit code of a wrong command line, and no traceback."""
    process = example(name)
    assert process.returncode == 2
    assert process.stderr.startswith(f"usage: python {ROOT / 'examples' / name} ")
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_service_example_ends_with_a_run_that_is_short(home):
    """The embedding example does not wait for steps that its budget does not hold."""
    process = example("embedded_service.py", str(home / "run"), *tiny(home / "corpus.jsonl", "run.budget.steps=1"))
    assert process.returncode == 0, process.stderr
    assert "stopped after step 1," in process.stdout


@pytest.mark.slow
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
        return SqliteDataSource(str(table(tmp_path / "d.db", [("a", "good"), ("a", None), ("a", "too")]))), 1

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


def test_a_run_that_has_not_trained_has_no_checkpoint_and_no_model(home):
    """What a host asks of a run too early is answered, so that nothing hides the error for which a run ended early."""
    run = build(settings_of(home))
    assert run.newest_checkpoint() is None
    assert run.best_checkpoint(Progress()) is None
    with pytest.raises(ConfigurationError, match="has not begun to train"):
        run.sample("a", Sampling())


def test_a_run_without_a_record_of_its_metrics_is_shown_at_its_newest_checkpoint(home):
    """A host may replace all monitors; what describes the run then takes its step from the checkpoints."""
    assert build(settings_of(home)).run().step == 4
    assert f"{home / 'run'} · finished · step 4 of 4" in explain(home / "run")
    assert '"step": 4' in list_runs(home, as_json=True, width=200)
    with closing(RunView(home / "run")) as view:
        assert view.summary()["step"] == 4


def test_a_host_asks_for_a_checkpoint_and_an_evaluation(home):
    """A command that a host gives in the middle of a run is executed after the step of that moment."""
    run, done = build(settings_of(home, "state_store.every=0", "evaluation.every=0")), []

    def ask(event):
        if event.progress.step == 2:
            run.request(Evaluate())
            run.request(SaveCheckpoint())

    run.subscribe(StepCompleted, ask)
    run.subscribe(EvaluationCompleted, lambda event: done.append(("evaluation", event.progress.step)))
    run.subscribe(CheckpointStarted, lambda event: done.append(("checkpoint", event.progress.step)))
    run.run()
    assert {("evaluation", 2), ("checkpoint", 2)} <= set(done)
    assert ("checkpoint", 3) not in done


def test_a_part_is_replaced_by_name(home):
    """An override takes the place of the configured adapter; a name that no part has is refused."""
    bus = MemoryEventBus()
    build(settings_of(home), event_bus=bus).run()
    assert isinstance(bus.published[-1], RunFinished)
    with pytest.raises(ConfigurationError, match="evnt_bus"):
        build(settings_of(home, f"run.dir={home / 'other'}"), evnt_bus=bus).run()


def test_two_runs_on_one_bus_do_not_touch_each_other(home):
    """A host that gives its bus to one run after another gets two runs: the first one's handlers end with it."""
    bus = MemoryEventBus()
    first, second = (build(settings_of(home, f"run.dir={home / name}"), event_bus=bus) for name in ("first", "second"))
    steps: list[int] = []
    first.subscribe(StepCompleted, lambda event: steps.append(event.progress.step))
    first.run()
    before = {path: path.read_bytes() for path in (home / "first").rglob("*") if path.is_file()}
    second.run()
    assert {path: path.read_bytes() for path in (home / "first").rglob("*") if path.is_file()} == before
    assert steps == [1, 2, 3, 4]


class Counting(ForwardingStateStore):
    """A wrapper that counts saves."""

    saves = 0

    def save(self, snapshot):
        """Save, and count."""
        self.saves += 1
        return self.inner.save(snapshot)


def test_a_wrapped_store_keeps_archive_and_audit(home):
    """A host that wraps the store of the settings sees each save, and loses nothing that the store inside does."""
    settings = settings_of(home, "state_store.every=1", SAME_RHYTHM, f"state_store.archive.url={home}/archive")
    stores = []

    def wrap(inner):
        stores.append(Counting(inner))
        return stores[-1]

    run = build(settings, state_store=wrap)
    assert run.run().step == 4
    assert [store.saves for store in stores] == [4]
    assert {path.name for path in (home / "archive/default").glob("checkpoint-*")} >= {"checkpoint-4"}
    assert "checkpoint-4" in (home / "run/audit.jsonl").read_text()
    with pytest.raises(ConfigurationError, match=r"state_store\.keep has no effect"):
        build(settings_of(home, "state_store.keep=1"), state_store=MemoryStateStore(Retention(1)))


def test_a_host_begins_a_run_afresh(home):
    """With ``fresh`` the folder of an earlier run is moved aside, and the run begins at its first step."""
    build(settings_of(home)).run()
    said, steps = [], []
    run = build(settings_of(home), report=said.append, fresh=True)
    run.subscribe(StepCompleted, lambda event: steps.append(event.progress.step))
    run.run()
    assert steps == [1, 2, 3, 4]
    assert any("the old run is in" in line for line in said)


class Stuck(Monitor):
    """A monitor that fails when it is closed."""

    def record(self, step, metrics):
        """Take no notice."""

    def rewind(self, step):
        """Forget nothing."""

    def close(self):
        """Fail."""
        msg = "the sink is gone"
        raise OSError(msg)


def test_a_monitor_that_fails_to_close_does_not_fail_the_run(home):
    """What a monitor raises at the end is told, and neither fails a finished run nor hides why another one failed."""
    said: list[str] = []
    assert build(settings_of(home), report=said.append, monitors=[Stuck()]).run().step == 4
    assert "the monitor Stuck failed: OSError: the sink is gone" in said
    (home / "corpus.jsonl").write_text("{")
    with pytest.raises(DataError):
        build(settings_of(home, f"run.dir={home / 'other'}"), monitors=[Stuck()]).run()


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
    monkeypatch.setattr("holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: points.get(group, []))
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


def stored_in(*, keep, folder):
    """Return a state store, as an entry point of the next test."""
    return DiskStateStore(Path(folder), Retention(keep))


def test_an_outside_state_store_is_told_how_much_to_keep(home, monkeypatch):
    """``state_store.keep`` reaches a state store that comes by entry point, beside its own options."""
    point = EntryPoint("vault", f"{__name__}:stored_in", "holdfast.state_store")
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: [point] if group == point.group else []
    )
    vault = home / "vault"
    store = ["state_store.kind=vault", "state_store.every=1", "state_store.keep=2", SAME_RHYTHM]
    store += ["recovery.health.spike_steps=1", "recovery.health.nonfinite_limit=1"]  # going back needs no more than two
    build(settings_of(home, *store, f"state_store.options.folder={vault}")).run()
    assert sorted(path.name for path in (vault / "checkpoints").iterdir()) == ["checkpoint-3", "checkpoint-4"]


def test_an_unknown_kind_names_the_nearest(home):
    """A kind that neither the core nor an installed package has is refused with what there is."""
    with pytest.raises(ConfigurationError, match="postgres") as caught:
        build(settings_of(home, "state_store.kind=postgres")).run()
    assert "disk" in str(caught.value)


def test_options_that_an_outside_adapter_does_not_take_are_refused(tmp_path, monkeypatch):
    """A misspelt option of an outside adapter is a configuration error that says what it asks for."""
    point = EntryPoint("table", f"{__name__}:ColumnSource", "holdfast.data_source")
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points",
        lambda group: [point] * (group == "holdfast.data_source"),
    )
    overrides = ["data.kind=table", "data.options.pth=t.db", f"run.dir={tmp_path / 'run'}", "monitors=[]"]
    with pytest.raises(ConfigurationError, match="'path'"):
        build(load_settings([], overrides, {}).settings).run()


def test_the_former_name_of_an_argument_still_works(home):
    """A host that passes ``say``, as in earlier versions, gets the lines and a warning that names ``report``."""
    said: list[str] = []
    with pytest.warns(DeprecationWarning, match="now called report"):
        run = build(settings_of(home), say=said.append)
    run.run()
    assert said


def test_a_run_is_run_once(home):
    """A second ``run`` of one object is refused; another object of the same settings goes on."""
    run = build(settings_of(home))
    run.run()
    with pytest.raises(ConfigurationError, match="build another"):
        run.run()


def test_secrets_in_an_error_do_not_reach_the_events(home):
    """A URL with a password in an exception's text is masked in events.jsonl and in what a person is told."""
    said = []
    run = build(settings_of(home), report=said.append)

    def fail(_):
        message = "cannot reach https://user:hunter2secret@example.org/x"
        raise RuntimeError(message)

    run.subscribe(StepCompleted, fail)
    run.run()
    recorded = (home / "run/events.jsonl").read_text()
    assert "HandlerFailed" in recorded
    assert "hunter2secret" not in recorded + "".join(said)


def test_finite_data_end_with_an_evaluation_and_a_checkpoint(home):
    """When the data end before the budget, the model is evaluated and saved, and all say that the run has finished."""
    bus = MemoryEventBus()
    run = build(settings_of(home, "data.epochs=1", "run.budget.steps=1000", "evaluation.every=0"), event_bus=bus)
    report = Report(run, is_quiet=True)
    progress = run.run()
    figures = report.as_data(progress)
    last = progress.step
    assert (figures["state"], figures["end"]) == ("finished", f"finished after step {last} of 1,000: the data ended")
    assert " · finished · " in explain(home / "run").splitlines()[0]
    # Saves are written beside the training: the report of an earlier one may come between.
    told = [event for event in bus.published if hasattr(event, "progress") and type(event) is not EvaluationProgressed]
    story = [type(event) for event in told if event.progress.step == last]
    assert 4 < last < 1000
    assert story[-7:] == [
        StepCompleted,
        DataEnded,
        EvaluationCompleted,
        StopRequested,
        CheckpointStarted,
        CheckpointSaved,
        RunFinished,
    ]


def test_no_figure_of_a_saved_step_is_missing(home):
    """When a checkpoint is captured, the figures of every step that it holds are in the file: a kill loses none."""
    figures = home / "run/metrics.jsonl"
    seen = {}

    def count(event):
        seen[event.progress.step] = [json.loads(line)["step"] for line in figures.read_text().splitlines()]

    settings = settings_of(home, "monitors=[{kind: jsonl}]", "state_store.every=1", "data.holdout=0", SAME_RHYTHM)
    run = build(settings)
    run.subscribe(CheckpointStarted, count)
    last = run.run().step
    assert seen == {step: list(range(1, step + 1)) for step in range(1, last + 1)}
