"""Sends metrics and texts to Weights & Biases."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, final

from holdfast.adapters.monitor.library_tracker import LibraryTracker, escaped, serve
from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.domain.errors import StateError
from holdfast.domain.urls import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import wandb


def wandb_tracker(
    project: str = "holdfast",
    entity: str | None = None,
    mode: Literal["online", "offline"] = "online",
    base_url: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
) -> LibraryTracker:
    """Return a tracker with a run in a project of W&B, online or in files of the run folder for ``wandb sync``.

    Each ``record`` is a row with the step in the column ``step``, which is the horizontal axis; W&B's own step counts
    the rows. A metric with the name of a column of W&B gets an underscore. Texts are lines of the tab Logs. W&B cannot
    remove rows: if its run has later ones, or was not finished, ``rewind`` continues in a new run of W&B, in the same
    group, whose configuration names the former and the step. The first has the id of the run, the others have a number
    behind it. The default of ``group`` is the id of the run, of a copy that of the original.
    """
    options = {
        "project": project,
        "entity": entity,
        "mode": mode,
        "base_url": base_url,
        "group": group,
        "tags": list(tags),
    }
    return LibraryTracker("wandb", "wandb", "holdfast.adapters.monitor.wandb", options)


STEP = "step"
"""The column with the step of the run."""

RESERVED = ("", STEP, "_step", "_runtime", "_timestamp", "_wandb")
"""The names that a column of a metric cannot have: that of the step, and W&B's own."""

_SECONDS_TO_START = 30.0
_SECONDS_TO_FINISH = 30.0
_SECONDS_TO_END = 60.0
_SECONDS_BETWEEN_WRITES = 1.0
_SECONDS_UNTIL_STORED = 10.0


@final
class WandbRun:
    """One start of a run, in the run of W&B of the earlier starts if that was finished and has no later steps.

    Rows get numbers from 1 on. ``begin`` waits until the process of an earlier start has ended.
    """

    def __init__(self) -> None:
        self._description: Mapping[str, Any] = {}
        self._options: Mapping[str, Any] = {}
        self._run: wandb.Run | None = None
        self._is_whole = True  # the open run has all rows of earlier starts that the record counts, and no others
        self._held: int | None = None  # the step up to which it has all rows, if it may lack later ones
        self._flushed = (time.monotonic(), 0)  # the last flush that counts for ``stored_step``, and its step

    def begin(self, run: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Open the newest run of W&B, or a first one."""
        self._description, self._options = run, options
        folder = Path(run["folder"]) / "wandb"
        folder.mkdir(exist_ok=True)
        self._lock = _locked(folder / "holdfast.lock")
        server = without_secrets(options["base_url"] or "")
        place = " ".join(str(part) for part in (options["mode"], server, options["entity"], options["project"]))
        self._record = WandbRecord(folder, run["run_id"], place)
        if (entry := self._record.newest) is None:
            self._begin_next(self._record.former, 0)
            return
        self._entry = entry
        self._run = self._opened(entry)
        num_rows = max(self._run.starting_step, 1) - 1 if self._is_online else entry.rows
        self._is_whole = not entry.is_open and num_rows == entry.rows
        if not self._is_whole:
            self._held = int(self._run.summary.get(STEP, 0)) if self._is_online else entry.stored_step
        entry.is_open = True
        self._record.write()

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a row."""
        assert self._run is not None
        columns = {escaped(name, RESERVED): value for name, value in metrics.items()}
        self._entry.rows += 1
        self._run.log({STEP: step, **columns}, step=self._entry.rows, commit=True)
        self._entry.last_step = max(self._entry.last_step, step)

    def note(self, step: int, kind: str, text: str) -> None:
        """Add a line to the tab Logs."""
        assert self._run is not None
        self._run.write_logs(f"[step {step}, {kind}] {text}".encode(errors="backslashreplace").decode())

    def rewind(self, step: int) -> int:
        """Continue in a new run of W&B if the open one may have later steps, or lack some; return its first step - 1.

        That is less than ``step`` if the open one may lack steps.
        """
        entry, start = self._entry, step if self._held is None else min(step, self._held)
        if not self._is_whole or entry.last_step > start or (start == 0 and entry.rows):
            assert self._run is not None
            self._run.summary["end_state"] = "continued"
            self._run.finish(0)
            self._begin_next(entry.id, start)
        elif entry.continues is not None and not entry.rows:
            entry.after_step = start
            self._describe()
            self._record.write()
        return start

    def flush(self) -> None:
        """Wait until the library has taken the rows, and note which it has certainly stored."""
        assert self._run is not None
        _ = self._run.step  # its answer comes after the rows before it
        then, step = self._flushed
        if time.monotonic() - then >= _SECONDS_UNTIL_STORED:
            self._entry.stored_step = step
            self._flushed = (time.monotonic(), self._entry.last_step)
        self._record.write()

    def close(self, state: str | None) -> None:
        """Finish W&B's run, as failed if it is not known how the start ended."""
        if self._run is None:
            return
        import wandb

        self._run.summary["end_state"] = state or "unknown"
        self._run.finish(0 if state in {"finished", "stopped"} else 1)
        wandb.teardown()  # returns when all is stored
        if self._is_whole:
            self._entry.is_open = False
        self._record.write()

    @property
    def _is_online(self) -> bool:
        return bool(self._options["mode"] == "online")

    def _begin_next(self, continues: str | None, after_step: int) -> None:
        """Open a new run of W&B, which gets the steps after ``after_step``."""
        entry = self._record.next(continues, after_step)
        while (run := self._opened(entry)).starting_step:  # the server has a run that the run folder does not know
            run.finish(0)
            entry = self._record.next(continues, after_step, entry.id)
        self._entry, self._run, self._is_whole, self._held = entry, run, True, None
        self._flushed = (time.monotonic(), after_step)
        self._describe()
        self._record.add(entry)

    def _opened(self, entry: WandbEntry) -> wandb.Run:
        """Return the run of W&B ``entry``, which may exist."""
        import wandb

        run, options = self._description, self._options
        opened = wandb.init(
            id=entry.id,
            name=run["name"],
            project=options["project"],
            entity=options["entity"],
            group=options["group"] or [*run["copied_from"], run["run_id"]][0],
            tags=options["tags"],
            dir=run["folder"],
            mode=options["mode"],
            resume="allow",
            settings=wandb.Settings(**_quiet(options["base_url"])),
        )
        config = {
            **run["settings"],
            "data_versions": run["data"],
            "environment": run["environment"],
            "num_ranks": run["num_ranks"],
        }
        opened.config.update(config, allow_val_change=True)
        opened.define_metric(STEP, hidden=True)
        opened.define_metric("*", step_metric=STEP)
        return opened

    def _describe(self) -> None:
        """Name the run of W&B that the open one continues."""
        assert self._run is not None
        if self._entry.continues is not None:
            link = {"run": self._entry.continues, "after_step": self._entry.after_step}
            self._run.config.update({"continues": link}, allow_val_change=True)


def _quiet(base_url: str | None) -> dict[str, Any]:
    """Return settings of the library: no output, and nothing of the machine except what the run describes."""
    return {
        "silent": True,
        "console": "off",
        "symlink": False,
        "disable_code": True,
        "disable_git": True,
        "disable_job_creation": True,
        "label_disable": True,
        "save_code": False,
        "x_disable_machine_info": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_save_requirements": False,
        "init_timeout": _SECONDS_TO_START,
        "login_timeout": _SECONDS_TO_START,
        "finish_timeout": _SECONDS_TO_FINISH,
        "x_transaction_log_flush_interval": _SECONDS_BETWEEN_WRITES,
        **({"base_url": base_url} if base_url else {}),
    }


def _locked(path: Path) -> IO[bytes]:
    """Return the file, locked for this process; raises ``StateError`` if another process keeps it locked."""
    file = path.open("wb")
    deadline = time.monotonic() + _SECONDS_TO_END
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                msg = f"another process holds {path}, which is locked while metrics are sent"
                raise StateError(msg) from None
            time.sleep(0.1)
        else:
            return file


@dataclass
class WandbEntry:
    """A run of W&B in ``place``, a project on a server or offline.

    It has the steps after ``after_step`` of the run of W&B ``continues``, if that is given. It had ``rows`` rows, up to
    ``last_step``, when it was finished; until then ``is_open``, and its library has certainly stored those up to
    ``stored_step`` (None: unknown).
    """

    id: str
    place: str
    continues: str | None = None
    after_step: int = 0
    rows: int = 0
    last_step: int = -1
    stored_step: int | None = 0
    is_open: bool = True


@final
class WandbRecord:
    """The runs of W&B of the run ``run_id`` in its ``folder``, of which those at ``place`` are continued.

    A folder that an earlier version has written has no record, and one run of W&B with the id of the run.
    """

    def __init__(self, folder: Path, run_id: str, place: str) -> None:
        self._path = folder / "holdfast.json"
        self._run_id, self._place = run_id, place
        self.former: str | None = None
        """The newest run of W&B of the run whose folder this one is a copy of."""
        self._entries = self._read()

    @property
    def newest(self) -> WandbEntry | None:
        """Return the run of W&B to continue, None if there is none at this place."""
        return next((entry for entry in reversed(self._entries) if entry.place == self._place), None)

    def next(self, continues: str | None, after_step: int, taken: str = "") -> WandbEntry:
        """Return a run of W&B whose id has a higher number than all before, and than ``taken``."""
        number = 1 + max(
            (self._number(name) for name in [taken, *(entry.id for entry in self._entries)] if name), default=0
        )
        return WandbEntry(self._id(number), self._place, continues, after_step, stored_step=after_step)

    def add(self, entry: WandbEntry) -> None:
        """Store that ``entry`` is the newest run of W&B; raises ``OSError``."""
        self._entries.append(entry)
        self.write()

    def write(self) -> None:
        """Store the entries; raises ``OSError``."""
        content = {"run_id": self._run_id, "runs": [asdict(entry) for entry in self._entries]}
        replace_file(self._path, json.dumps(content, indent=1).encode())

    def _read(self) -> list[WandbEntry]:
        try:
            record = parse_json(read_regular(self._path))
            entries = [WandbEntry(**entry) for entry in record["runs"]]
            is_own = record["run_id"] == self._run_id
        except (OSError, ValueError, TypeError, KeyError):  # none, or a damaged one
            return self._found()
        if not is_own:
            self.former = entries[-1].id if entries else None
            return []
        return entries

    def _found(self) -> list[WandbEntry]:
        """Return entries for the files of the library, whose names have the ids of its runs."""
        paths = self._path.parent.glob(f"*run-*/run-{self._run_id}*.wandb")
        numbers = sorted({self._number(path.stem.removeprefix("run-")) for path in paths})
        return [WandbEntry(self._id(number), self._place, stored_step=None) for number in numbers]

    def _id(self, number: int) -> str:
        return self._run_id if number == 1 else f"{self._run_id}-{number}"

    def _number(self, name: str) -> int:
        """Return the number at the end of an id, 1 without one."""
        end = name.removeprefix(self._run_id).removeprefix("-")
        return int(end) if end.isdecimal() else 1


if __name__ == "__main__":
    os.environ |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    serve(WandbRun(), _SECONDS_TO_END)
