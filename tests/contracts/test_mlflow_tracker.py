"""MLflow keeps the port's promises, and its own."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.adapters.monitor import mlflow_process
from holdfast.adapters.monitor.library_process import Refusal
from holdfast.adapters.monitor.mlflow import mlflow_tracker
from holdfast.adapters.monitor.mlflow_fields import decoded
from holdfast.adapters.monitor.mlflow_process import MlflowRun, client_of
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import described
from tests.support.slow_trackers import SlowTrackerContract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """Return a database, which takes MLflow seconds to make: each test begins with a copy."""
    folder = tmp_path_factory.mktemp("mlflow") / "run"
    folder.mkdir()
    tracker = mlflow_tracker()
    tracker.begin(described(folder))
    tracker.close()
    client = client_of(f"sqlite:///{folder.parent}/mlflow.db")
    for run in client.search_runs([client.get_experiment_by_name("holdfast").experiment_id]):
        client.delete_run(run.info.run_id)
    return folder.parent / "mlflow.db"


class TestMlflowTracker(SlowTrackerContract):
    @pytest.fixture(autouse=True)
    def _template(self, empty_database):
        self.template = empty_database

    def new_tracker(self, folder):
        run_folder = folder / "run"
        if not run_folder.exists():
            run_folder.mkdir()
            shutil.copy(self.template, folder / "mlflow.db")
        return mlflow_tracker(experiment="tests")

    def open_monitor(self, folder):
        tracker = self.new_tracker(folder)
        tracker.begin(described(folder / "run"))
        return tracker

    def recorded(self, monitor, folder):
        client = client_of(f"sqlite:///{folder}/mlflow.db")
        return [
            (point.step, {self.name_of(run, name): point.value})
            for run in self.runs(folder)
            for name in run.data.metrics
            for point in client.get_metric_history(run.info.run_id, name)
        ]

    def noted(self, tracker, folder):
        client = client_of(f"sqlite:///{folder}/mlflow.db")
        (run,) = self.runs(folder)
        texts = []
        for file in client.list_artifacts(run.info.run_id, "notes"):
            parts = re.split(
                r"^## step (\d+)\n\n",
                Path(client.download_artifacts(run.info.run_id, file.path)).read_text("utf-8"),
                flags=re.MULTILINE,
            )
            texts += [
                (int(step), text.removesuffix("\n\n")) for step, text in zip(parts[1::2], parts[2::2], strict=True)
            ]
        return texts

    def as_kept(self, value):
        if math.isinf(value):
            return math.copysign(sys.float_info.max, value)
        return float(value) + 0.0  # SQLite has no negative zero

    def runs(self, folder):
        client = client_of(f"sqlite:///{folder}/mlflow.db")
        experiment = client.get_experiment_by_name("tests")
        return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))

    def name_of(self, run, key):
        cut = run.data.tags.get(f"name.{key[-32:]}")
        return decoded(key) if cut is None else json.loads(cut)

    def test_a_run_is_described(self, tmp_path):
        """Settings are parameters, data and environment are tags, and the end of each start is the status."""
        for end, status in ((EndState.STOPPED, "KILLED"), (EndState.FAILED, "FAILED"), (EndState.FINISHED, "FINISHED")):
            tracker = self.open_monitor(tmp_path)
            (run,) = self.runs(tmp_path)
            assert run.info.status == "RUNNING"
            tracker.finish(end)
            tracker.close()
            (run,) = self.runs(tmp_path)
            assert run.info.status == status
        assert run.info.run_name == "a run"
        assert run.data.params == {"run.name": "a run", "run.seed": "0", "monitors.0.kind": "jsonl", "note": "null"}
        assert run.data.tags["data.books"] == "v1"
        assert run.data.tags["environment.versions.torch"] == "2"
        assert run.data.tags["ranks"] == "2"

    def test_changed_settings_become_tags(self, tmp_path):
        """MLflow cannot change a parameter: the new value is a tag."""
        self.open_monitor(tmp_path).close()
        later = self.new_tracker(tmp_path)
        run = described(tmp_path / "run")
        run.settings["run"]["seed"] = 7
        later.begin(run)
        later.close()
        (found,) = self.runs(tmp_path)
        assert found.data.params["run.seed"] == "0"
        assert found.data.tags["changed.run.seed"] == "7"

    def test_notes_survive_a_roll_back_and_a_restart(self, tmp_path):
        """The MLflow run that replaces another has its notes, also those of earlier starts."""
        tracker = self.open_monitor(tmp_path)
        tracker.note(1, NoteKind.EVENT, "first")
        tracker.record(2, {"loss": 1.0})
        tracker.close()
        tracker = self.open_monitor(tmp_path)
        tracker.rewind(1)
        tracker.note(2, NoteKind.EVENT, "second")
        tracker.close()
        assert self.noted(tracker, tmp_path) == [(1, "first"), (2, "second")]

    def test_many_notes_are_several_files(self, tmp_path, monkeypatch):
        """Notes beyond the size of a file are in further files, which later starts and other MLflow runs continue."""
        monkeypatch.setattr(mlflow_process, "_LARGEST_NOTES", 10)
        for step in (1, 2, 3):
            run = self.in_this_process(tmp_path)
            run.record(step, {"loss": 1.0})
            run.flush()
            run.rewind(step - 1 or 1)
            run.note(step, "event", f"text {step}")
            run.close("stopped")
        client = client_of(f"sqlite:///{tmp_path}/mlflow.db")
        (found,) = self.runs(tmp_path)
        assert len(client.list_artifacts(found.info.run_id, "notes")) == 3
        assert sorted(self.noted(None, tmp_path)) == [(1, "text 1"), (2, "text 2"), (3, "text 3")]

    def test_a_copy_that_was_interrupted_is_left_behind(self, tmp_path, monkeypatch):
        """A process that dies while metrics are copied leaves the old MLflow run, which the next start uses."""
        run = self.in_this_process(tmp_path)
        for step in (1, 2):
            run.record(step, {"loss": float(step)})
        run.flush()
        with monkeypatch.context() as patch:
            patch.setattr(run, "_describe", broken(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run.rewind(1)
        assert len(self.runs(tmp_path)) == 2
        later = self.in_this_process(tmp_path)
        assert len(self.runs(tmp_path)) == 1
        later.rewind(1)
        assert self.recorded(None, tmp_path) == [(1, {"loss": 1.0})]

    def test_a_copy_that_failed_is_made_again(self, tmp_path, monkeypatch):
        """An error while metrics are copied leaves the old MLflow run alone, and the next ``rewind`` copies it."""
        run = self.in_this_process(tmp_path)
        for step in (1, 2):
            run.record(step, {"loss": float(step)})
        run.flush()
        with monkeypatch.context() as patch:
            patch.setattr(run, "_describe", broken(ConnectionError))
            with pytest.raises(Refusal):
                run.rewind(1)
        assert len(self.recorded(None, tmp_path)) == 2
        run.rewind(1)
        run.record(2, {"loss": 20.0})
        run.flush()
        assert self.recorded(None, tmp_path) == [(1, {"loss": 1.0}), (2, {"loss": 20.0})]

    def test_metrics_wait_while_the_server_is_away(self, tmp_path, monkeypatch):
        """``record`` does not raise, ``flush`` does, with the same sentence each time, and the next one sends all."""
        run = self.in_this_process(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(run._client, "log_batch", broken(ConnectionError("an object at 0x7f")))
            for step in (1, 2):
                run.record(step, {"loss": float(step)})
            for _ in range(2):
                with pytest.raises(Refusal, match=r"MLflow at sqlite:.* cannot be reached: ConnectionError$"):
                    run.flush()
        run.flush()
        assert self.recorded(None, tmp_path) == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]

    def test_a_long_absence_raises(self, tmp_path, monkeypatch):
        """Metrics that no longer fit are dropped with an error, so that the run sends them again."""
        monkeypatch.setattr("holdfast.adapters.monitor.mlflow_process._MOST_WAITING", 3)
        run = self.in_this_process(tmp_path)
        monkeypatch.setattr(run._client, "log_batch", broken(ConnectionError))
        for step in (1, 2, 3, 4):
            run.record(step, {"loss": 1.0})
        with pytest.raises(Refusal, match="are dropped, and are sent again later"):
            run.record(5, {"loss": 1.0})

    def test_an_orphan_sends_nothing(self, tmp_path, monkeypatch):
        """Once the training process has died, its child does not write beside the next start of the run."""
        run = self.in_this_process(tmp_path)
        run._parent += 1
        run.record(1, {"loss": 1.0})
        run.flush()
        assert self.recorded(None, tmp_path) == []

    def in_this_process(self, folder):
        """Return what a child process would serve."""
        self.new_tracker(folder)
        run = MlflowRun()
        options = {"tracking_uri": None, "experiment": "tests"}
        run.begin(asdict(described(folder / "run")) | {"folder": str(folder / "run")}, options)
        return run

    def test_nothing_is_printed(self, tmp_path, capfd):
        """The library is silent, also where it makes its database."""
        tracker = mlflow_tracker()
        (tmp_path / "new" / "run").mkdir(parents=True)
        tracker.begin(described(tmp_path / "new" / "run"))
        tracker.record(1, {"loss": 1.0})
        tracker.finish(EndState.FINISHED)
        tracker.close()
        assert [path.name for path in sorted((tmp_path / "new").iterdir())] == ["mlflow.db", "run"]
        assert capfd.readouterr() == ("", "")


def broken(error):
    """Return a function that raises ``error``."""

    def call(*_, **__):
        raise error

    return call
