"""Trackers that a test runs at once, each read back by its own library."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.monitor.library_tracker import unescaped
from holdfast.adapters.monitor.wandb import RESERVED
from tests.support.wandb_server import WandbServer, wandb_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Point = tuple[int, str, float]


@dataclass(frozen=True)
class Reader:
    """How metrics get into a tracker and back.

    ``section`` makes the tracker's settings for runs of a folder; ``read`` returns the points of the run ``default`` in
    it. ``as_kept`` gives a value the precision of the sink. ``merges`` says that the sink keeps one value for a name
    and a step. ``of`` says of a step and a name, and of the last step, whether the sink has them.
    """

    name: str
    package: str
    section: Callable[[Path], str]
    read: Callable[[Path], Iterable[Point]]
    as_kept: Callable[[float], float] = float
    merges: bool = False
    of: Callable[[int, str, int], bool] = lambda _step, _name, _last: True

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def differences(self, home: Path) -> list[str]:
        """Return what the tracker has and ``metrics.jsonl`` has not, and the other way round."""
        points = list(truth(home))
        last = max(step for step, _, _ in points)
        expected = _shown(
            (step, name, self.as_kept(value)) for step, name, value in points if self.of(step, name, last)
        )
        found = _shown(self.read(home))
        if self.merges:
            expected = sorted(set(expected))
        few, many = _without(expected, found), _without(found, expected)
        return [f"{self.name} lacks {point}" for point in few] + [f"{self.name} has also {point}" for point in many]


def truth(home: Path) -> Iterable[Point]:
    """Yield what the run recorded itself."""
    for line in (home / "runs/default/metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        yield from ((record["step"], name, float(value)) for name, value in record.items() if name != "step")


def _shown(points: Iterable[Point]) -> list[str]:
    return sorted(f"step {step}: {name} {float(value)!r}" for step, name, value in points)


def _without(points: list[str], others: list[str]) -> list[str]:
    left = list(others)
    return [point for point in points if point not in left or left.remove(point) is not None]


def _float32(value: float) -> float:
    return float(np.float32(value))


def _read_tensorboard(home: Path) -> Iterable[Point]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(home / "runs/default/tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for name in events.Tags()["scalars"]:
        yield from ((event.step, name, event.value) for event in events.Scalars(name))


@dataclass(frozen=True)
class TrackerRun:
    """A run of a tracker: its points, and the run that it continues after a step."""

    id: str
    points: list[Point]
    continues: str | None = None
    after_step: int = 0


def continued(runs: Iterable[TrackerRun]) -> list[Point]:
    """Return the points of the newest run, and those of the others that it continues."""
    known = {run.id: run for run in runs}
    if not known:
        return []
    (newest,) = known.keys() - {run.continues for run in known.values()}
    run: TrackerRun | None = known[newest]
    points, last = [], 1 << 62
    while run is not None:
        points += [point for point in run.points if point[0] <= last]
        last = min(last, run.after_step or -1)  # after step 0 it has step 0 as well
        run = known.get(run.continues or "")
    return points


def mlflow_runs(uri: str, experiment: str = "holdfast") -> list[TrackerRun]:
    """Return the runs of an experiment."""
    from holdfast.adapters.monitor.mlflow import client_of

    client = client_of(uri)
    if (found := client.get_experiment_by_name(experiment)) is None:
        return []
    return [
        TrackerRun(
            run.info.run_id,
            [
                (point.step, _name_of(key, run.data.tags.get(f"name.{key[-32:]}")), point.value)
                for key in run.data.metrics
                for point in client.get_metric_history(run.info.run_id, key)
            ],
            run.data.tags.get("holdfast.continues"),
            int(run.data.tags.get("holdfast.after_step", 0)),
        )
        for run in client.search_runs([found.experiment_id])
    ]


def _name_of(key: str, long_name: str | None) -> str:
    from holdfast.adapters.monitor.mlflow import decoded

    return decoded(key) if long_name is None else json.loads(long_name)


def wandb_runs(server: WandbServer) -> list[TrackerRun]:
    """Return the runs that a server of W&B has."""
    links = {run.name: run.config.get("continues", {}).get("value", {}) for run in server.runs.values()}
    return [
        TrackerRun(run.name, _points(run.rows), links[run.name].get("run"), links[run.name].get("after_step", 0))
        for run in server.runs.values()
    ]


def _points(rows: Iterable[dict[str, Any]]) -> list[Point]:
    return [
        (row["step"], unescaped(name, RESERVED), float(value))
        for row in rows
        for name, value in row.items()
        if name not in RESERVED
    ]


def synced(home: Path) -> list[TrackerRun]:
    """Return what ``wandb sync`` uploads of the run ``default`` in ``home``."""
    with wandb_server() as server:
        sync(home / "runs/default/wandb", server)
        return wandb_runs(server)


def sync(folder: Path, server: WandbServer) -> None:
    """Upload what W&B's library has stored in ``folder``."""
    environment = os.environ | {
        "WANDB_BASE_URL": server.url,
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_API_KEY": "0" * 40,
    }
    command = [sys.executable, "-m", "wandb", "sync", "--include-synced", *map(str, folder.glob("offline-run-*"))]
    subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, timeout=300)


def _read_trackio(home: Path) -> Iterable[Point]:
    from trackio import sqlite_storage

    sqlite_storage.TRACKIO_DIR = home / "trackio"  # read from the environment at the import
    for log in sqlite_storage.SQLiteStorage.get_logs("holdfast", run="default"):
        step, _ = log.pop("step"), log.pop("timestamp")
        yield from ((step, name, value) for name, value in log.items())


def _read_prometheus(home: Path) -> Iterable[Point]:
    from prometheus_client.parser import text_string_to_metric_families as parse

    offered = {family.name: family.samples[0].value for family in parse((home / "run.prom").read_text())}
    yield from ((int(offered["holdfast_step"]), name, offered[f"holdfast_{name}"]) for name in _LAST)


def _read_sqlite(home: Path) -> Iterable[Point]:
    import sqlite3

    with contextlib.closing(sqlite3.connect(home / "runs/default/metrics.sqlite")) as connection:
        return connection.execute(_STORED.format("")).fetchall()


def _read_postgres(home: Path) -> Iterable[Point]:
    import psycopg

    with psycopg.connect(dsn_in(home).read_text()) as connection:
        return connection.execute(_STORED.format("holdfast.")).fetchall()


def dsn_in(home: Path) -> Path:
    """Return the file in which a test leaves the connection string of an empty database."""
    return home / "dsn"


_LAST = ("loss", "eval_loss", "memory_bytes")
_STORED = "SELECT step, name, value FROM {}metrics"

READERS = [
    Reader("tensorboard", "tensorboard", lambda _: "tensorboard", _read_tensorboard, _float32),
    Reader(
        "mlflow",
        "sqlalchemy",
        lambda _: "mlflow",
        lambda home: continued(mlflow_runs(f"sqlite:///{home}/runs/mlflow.db")),
    ),
    Reader("wandb", "wandb", lambda _: "{kind: wandb, mode: offline}", lambda home: continued(synced(home))),
    Reader("trackio", "trackio", lambda home: f"{{kind: trackio, dir: '{home}/trackio'}}", _read_trackio),
    Reader(
        "prometheus",
        "prometheus_client",
        lambda home: f"{{kind: prometheus, port: null, textfile: '{home}/run.prom'}}",
        _read_prometheus,
        of=lambda step, name, last: step == last and name in _LAST,
    ),
    Reader("sqlite", "sqlite3", lambda _: "sqlite", _read_sqlite, merges=True),
    Reader(
        "postgres",
        "psycopg",
        lambda home: f"{{kind: postgres, dsn: '{dsn_in(home).read_text()}'}}",
        _read_postgres,
        merges=True,
    ),
]
