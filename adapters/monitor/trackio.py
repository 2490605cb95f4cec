"""Records metrics and texts with trackio."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final
from uuid import uuid4

from holdfast.adapters.monitor.library_tracker import LibraryTracker, escaped, serve

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def trackio_tracker(
    project: str = "holdfast", folder: Path | None = None, space_id: str | None = None
) -> LibraryTracker:
    """Return a tracker with a SQLite file of trackio for each project, in ``folder`` or in trackio's own folder.

    The id of trackio's run is the id of the run. Rows are stored at least once a second while there are new ones, and
    by ``flush``. Texts are alerts of level info. A metric with the name of a column of trackio gets an underscore. With
    ``space_id`` the project is also copied to a Space on the Hugging Face Hub at the end of each start that did not
    fail: a Space cannot forget rows.
    """
    options = {
        "project": project,
        "folder": None if folder is None else str(folder.absolute()),
        "space_id": space_id,
    }
    return LibraryTracker("trackio", "trackio", "holdfast.adapters.monitor.trackio", options)


RESERVED = ("project", "run", "timestamp", "step", "time", "metrics")
"""The names that a column of a metric cannot have."""

_SECONDS_TO_END = 600.0
_SECONDS_TO_WAIT = 30.0
_SECONDS_BETWEEN_WRITES = 1.0
_MOST_WAITING = 1000


@final
class TrackioRun:
    """One start of a run; the rows of all starts are together."""

    def __init__(self) -> None:
        self._options: Mapping[str, Any] = {}
        self._run: dict[str, str] = {}
        self._config: dict[str, Any] | None = None  # until it is stored
        self._steps: list[int] = []
        self._rows: list[dict[str, float]] = []
        self._times: list[str] = []
        self._written = 0.0

    def begin(self, run: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Open the file of the project."""
        self._options = options
        self._run = {"project": options["project"], "run": run["name"], "run_id": run["run_id"]}
        if options["folder"] is not None:
            os.environ["TRACKIO_DIR"] = options["folder"]  # read at the import
        storage = _storage()
        storage.validate_project_name(options["project"])
        storage.init_db(options["project"])
        before = storage.get_run_config(**self._run) or {}
        self._config = {
            **run["settings"],
            "data_versions": run["data"],
            "environment": run["environment"],
            "num_ranks": run["num_ranks"],
            "_Created": before.get("_Created") or _now(),
            "_Group": None,
        }

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a row."""
        self._steps.append(step)
        self._rows.append({escaped(name, RESERVED): value for name, value in metrics.items()})
        self._times.append(_now())
        if len(self._rows) >= _MOST_WAITING or time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self.flush()

    def note(self, step: int, kind: str, text: str) -> None:
        """Add an alert."""
        self._alert(kind, text.encode(errors="backslashreplace").decode(), step)

    def rewind(self, step: int) -> None:
        """Delete the rows of later steps."""
        self.flush()
        path = _storage().init_db(self._options["project"])
        with closing(sqlite3.connect(path, timeout=_SECONDS_TO_WAIT)) as connection, connection:
            connection.execute(
                "DELETE FROM metrics WHERE run_id = ? AND (step > ? OR ? = 0)", (self._run["run_id"], step, step)
            )

    def flush(self) -> None:
        """Store the rows."""
        self._written = time.monotonic()
        if self._rows:
            _storage().bulk_log(
                **self._run,
                metrics_list=self._rows,
                steps=self._steps,
                timestamps=self._times,
                config=self._config,
                log_ids=[uuid4().hex for _ in self._rows],
            )
            self._rows, self._steps, self._times, self._config = [], [], [], None

    def close(self, state: str | None) -> None:
        """Store the rows and the end, and copy the project to a Space if one is given."""
        if not self._run:
            return
        self.flush()
        self._alert("end", state or "unknown", None)
        if self._options["space_id"] is not None and state in {"finished", "stopped"}:
            import trackio

            trackio.sync(self._options["project"], space_id=self._options["space_id"], force=True)

    def _alert(self, title: str, text: str, step: int | None) -> None:
        _storage().bulk_alert(
            **self._run, titles=[title], texts=[text], levels=["info"], steps=[step], alert_ids=[uuid4().hex]
        )


def _storage() -> Any:
    """Return trackio's storage, whose functions open the file of a project at each call."""
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def _now() -> str:
    return datetime.now(UTC).isoformat()


if __name__ == "__main__":
    serve(TrackioRun(), _SECONDS_TO_END)
