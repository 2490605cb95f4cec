"""MLflow keeps the port's promises, and its own."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from holdfast.adapters.monitor import mlflow as mlflow_process
from holdfast.adapters.monitor.library_tracker import Refusal
from holdfast.adapters.monitor.mlflow import MlflowRun, client_of, mlflow_tracker
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import described
from tests.support.slow_trackers import SlowTrackerContract
from tests.support.tracker_readers import continued, mlflow_runs

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
        points = continued(mlflow_runs(f"sqlite:///{folder}/mlflow.db", "tests"))
        return [(step, {name: value}) for step, name, value in points]

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

    def test_a_roll_back_continues_beside_the_former_run(self, tmp_path):
        """The new run has the steps after the roll-back, names the former and the step, and is below the first."""
        tracker = self.open_monitor(tmp_path)
        for step in (1, 2, 3):
            tracker.record(step, {"loss": float(step)})
        tracker.flush()  # what has not been sent needs no other run
        tracker.rewind(2)
        tracker.record(3, {"loss": 30.0})
        tracker.close()
        tracker = self.open_monitor(tmp_path)
        tracker.rewind(1)
        tracker.record(2, {"loss": 20.0})
        tracker.finish(EndState.FINISHED)
        tracker.close()
        runs = sorted(self.runs(tmp_path), key=lambda run: run.info.start_time)
        first, second, third = (run.info.run_id for run in runs)
        found = {run.id: run for run in mlflow_runs(f"sqlite:///{tmp_path}/mlflow.db", "tests")}
        assert [found[each].points for each in (first, second, third)] == [
            [(1, "loss", 1.0), (2, "loss", 2.0), (3, "loss", 3.0)], [(3, "loss", 30.0)], [(2, "loss", 20.0)],
        ]  # fmt: skip
        links = [(found[each].continues, found[each].after_step) for each in (first, second, third)]
        assert links == [(None, 0), (first, 2), (second, 1)]
        assert [run.data.tags.get("mlflow.parentRunId") for run in runs] == [None, first, first]
        assert [run.info.status for run in runs] == ["KILLED", "KILLED", "FINISHED"]
        assert len({json.dumps(run.data.params, sort_keys=True) for run in runs}) == 1

    def test_starts_that_ended_continue_one_run(self, tmp_path):
        """A run that was stopped at a checkpoint goes on in its run of MLflow, with its notes."""
        for step in (1, 2):
            tracker = self.open_monitor(tmp_path)
            tracker.rewind(step - 1)
            tracker.record(step, {"loss": float(step)})
            tracker.note(step, NoteKind.EVENT, f"text {step}")
            tracker.close()
        assert self.recorded(None, tmp_path) == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]
        assert self.noted(tracker, tmp_path) == [(1, "text 1"), (2, "text 2")]

    def test_many_notes_are_several_files(self, tmp_path, monkeypatch):
        """Notes beyond the size of a file are in further files, which later starts continue."""
        monkeypatch.setattr(mlflow_process, "_LARGEST_NOTES", 10)
        for step in (1, 2, 3):
            run = self.in_this_process(tmp_path)
            run.note(step, "event", f"text {step}")
            run.close("stopped")
        client = client_of(f"sqlite:///{tmp_path}/mlflow.db")
        (found,) = self.runs(tmp_path)
        assert len(client.list_artifacts(found.info.run_id, "notes")) == 3
        assert sorted(self.noted(None, tmp_path)) == [(1, "text 1"), (2, "text 2"), (3, "text 3")]

    def test_a_new_run_that_was_not_described_is_described_later(self, tmp_path, monkeypatch):
        """An error while a new run of MLflow begins is reported, and the next ``rewind`` completes that run."""
        run = self.in_this_process(tmp_path)
        for step in (1, 2, 3):
            run.record(step, {"loss": float(step)})
        run.flush()
        with monkeypatch.context() as patch:
            patch.setattr(run, "_describe", broken(ConnectionError))
            with pytest.raises(Refusal):
                run.rewind(2)
        run.rewind(1)
        run.record(2, {"loss": 20.0})
        run.flush()
        assert self.recorded(None, tmp_path) == [(2, {"loss": 20.0}), (1, {"loss": 1.0})]
        first, second = sorted(self.runs(tmp_path), key=lambda run: run.info.start_time)
        assert first.data.params == second.data.params

    def test_what_a_copy_of_an_earlier_version_left_is_not_continued(self, tmp_path):
        """An earlier version copied metrics: of a copy that was interrupted the whole run goes on."""
        run = self.in_this_process(tmp_path)
        run.record(1, {"loss": 1.0})
        run.flush()
        run._create(**{"holdfast.copying": run._id})
        later = self.in_this_process(tmp_path)
        assert later._id == run._id

    def test_a_copied_run_stands_beside_the_original(self, tmp_path):
        """A copy of a run folder has a run of MLflow of its own, linked to that of the original and below it."""
        tracker = self.open_monitor(tmp_path)
        tracker.record(1, {"loss": 1.0})
        tracker.close()
        run = described(tmp_path / "run")
        tracker = self.new_tracker(tmp_path)
        tracker.begin(replace(run, run_id="another", copied_from=[run.run_id]))
        tracker.rewind(0)
        tracker.record(1, {"loss": 1.0})
        tracker.close()
        first, copy = sorted(self.runs(tmp_path), key=lambda run: run.info.start_time)
        tags = copy.data.tags
        assert tags["holdfast.run_id"] == "another"
        assert (tags["holdfast.continues"], tags["holdfast.after_step"]) == (first.info.run_id, "0")
        assert tags["mlflow.parentRunId"] == first.info.run_id

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
        monkeypatch.setattr("holdfast.adapters.monitor.mlflow._MOST_WAITING", 3)
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
