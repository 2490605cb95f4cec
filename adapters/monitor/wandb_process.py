"""The child process of the tracker ``wandb``, in which W&B's library runs."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

from holdfast.adapters.monitor.library_process import Refusal, escaped, serve
from holdfast.adapters.monitor.wandb_log import (
    OWN_COLUMNS,
    STEP,
    Extent,
    LogReader,
    Row,
    cut,
    extent_of,
    kinds_of,
    rows_of,
)
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import wandb

RESERVED = ("", STEP, *OWN_COLUMNS)
"""The names that a column of a metric cannot have."""

_SECONDS_TO_START = 30.0
_SECONDS_TO_FINISH = 30.0
_SECONDS_TO_END = 60.0
_SECONDS_BETWEEN_WRITES = 1.0


@final
class WandbRun:
    """One start of a run: rows get numbers from 1 on, which continue those of earlier starts.

    ``begin`` waits until the process of an earlier start has ended.
    """

    def __init__(self) -> None:
        self._description: Mapping[str, Any] = {}
        self._options: Mapping[str, Any] = {}
        self._folder = Path()
        self._run: wandb.Run | None = None
        self._reader: LogReader | None = None
        self._next = 1  # the number of the next row
        self._num_rows = 0  # of the open run
        self._stored: Counter[str] = Counter()  # kinds of the records in its file
        self._last_step = -1
        self._extents: dict[Path, tuple[tuple[int, int], Extent]] = {}
        self._kept_step: int | None = None  # the server keeps what it has up to this step, and gets later steps only

    def begin(self, run: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Open W&B's run."""
        self._description, self._options = run, options
        self._folder = Path(run["folder"]) / "wandb"
        self._folder.mkdir(exist_ok=True)
        self._lock = _locked(self._folder / "holdfast.lock")
        self._next = self._next_number()
        self._open()

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a row."""
        if self._kept_step is None or step > self._kept_step:
            self._log(step, {escaped(name, RESERVED): value for name, value in metrics.items()})

    def note(self, step: int, kind: str, text: str) -> None:
        """Add a line to the tab Logs."""
        assert self._run is not None
        self._run.write_logs(f"[step {step}, {kind}] {text}".encode(errors="backslashreplace").decode())

    def rewind(self, step: int) -> None:
        """Remove the rows of later steps, and send rows up to ``step`` that the server has not received."""
        if self._kept_step is not None:
            self._kept_step = max(self._kept_step, self._last_step)
            return

        if self._last_step > step or (step == 0 and self._num_rows):
            self._finish(0)
        removed = max((self._extent(path).step for path in self._files_after(step)), default=None)
        if removed is not None:
            self._cut(lambda row: 0 < step >= row.step, self._files_after(step))
        if self._run is None or not self._num_rows:
            self._next = self._next_number()
            self._continue(removed or 0)

    def flush(self) -> None:
        """Wait until the rows are in W&B's file."""
        self._wait_for({"history": self._num_rows})

    def close(self, state: str | None) -> None:
        """Finish W&B's run, as failed if it is not known how the start ended."""
        if self._run is not None:
            self._run.summary["end_state"] = state or "unknown"
            self._finish(0 if state in {"finished", "stopped"} else 1)

    def _continue(self, removed: int) -> None:
        """Open a run whose next row is ``self._next``; ``removed`` is the last step of which rows were removed."""
        import wandb

        if self._run is None:
            self._open()
        assert self._run is not None
        if not self._is_online:
            return
        if (sent := self._run.starting_step) > self._next:  # the number after the last row of the server
            removed = max(removed, int(self._run.summary.get(STEP, 0)))
            self._finish(0)
            try:
                self._open(self._next - 1)
            except Exception as error:  # many servers do not support it
                wandb.teardown()  # it holds the id of the run that it could not open
                self._open()
                self._kept_step, self._next = removed, self._run.starting_step
                msg = f"the server cannot rewind the run, so it keeps the metrics up to step {removed}: {error}"
                raise Refusal(msg) from error
        elif missing := {row.number: row for row in self._rows_from(max(sent, 1))}:
            self._next = min(missing)
            for row in missing.values():
                self._log(row.step, row.columns)
            self.flush()
            self._cut(lambda row: row.number not in missing, self._files())

    def _open(self, rewind_to: int | None = None) -> None:
        import wandb

        run, options = self._description, self._options
        mode: dict[str, Any] = (
            {"resume": "allow"} if rewind_to is None else {"resume_from": f"{run['run_id']}?_step={rewind_to}"}
        )
        config = {
            **run["settings"],
            "data_versions": run["data"],
            "environment": run["environment"],
            "num_ranks": run["num_ranks"],
        }
        self._run = wandb.init(
            id=run["run_id"],
            name=run["name"],
            project=options["project"],
            entity=options["entity"],
            group=options["group"],
            tags=options["tags"],
            dir=run["folder"],
            mode=options["mode"],
            settings=wandb.Settings(**_quiet(options["base_url"])),
            **mode,
        )
        self._run.config.update(config, allow_val_change=True)
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)
        self._reader = LogReader(Path(self._run.settings.sync_file))
        self._num_rows, self._stored = 0, Counter()
        self._last_step = -1

    def _finish(self, exit_code: int) -> None:
        """Finish the open run, and wait until its file is complete."""
        run, self._run = self._run, None
        assert run is not None
        run.finish(exit_code)
        self._wait_for({"exit": 1})

    def _wait_for(self, numbers: Mapping[str, int]) -> None:
        """Wait until the file of the open run has these numbers of records of each kind."""
        assert self._reader is not None
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            self._stored.update(kinds_of(self._reader))
            if all(self._stored[kind] >= number for kind, number in numbers.items()):
                return
            if time.monotonic() > deadline:
                msg = f"the library did not store its records within {_SECONDS_TO_START:.0f} s"
                raise StateError(msg)
            time.sleep(0.05)

    def _log(self, step: int, columns: Mapping[str, float]) -> None:
        assert self._run is not None
        self._run.log({STEP: step, **columns}, step=self._next, commit=True)
        self._next += 1
        self._num_rows += 1
        self._last_step = max(self._last_step, step)

    @property
    def _is_online(self) -> bool:
        return bool(self._options["mode"] == "online")

    def _rows_from(self, number: int) -> Iterator[Row]:
        """Yield the rows from ``number`` on in the files of all starts of the run, in the order of the starts."""
        for path in self._files():
            if self._extent(path).number >= number:
                yield from (row for row in rows_of(path) if row.number >= number)

    def _files_after(self, step: int) -> Sequence[Path]:
        """Return the files with rows of later steps than ``step``, those with any rows for step 0."""
        extents = [(path, self._extent(path)) for path in self._files()]
        return [path for path, extent in extents if extent.step > step or (step == 0 and extent.number)]

    def _extent(self, path: Path) -> Extent:
        """Return the extent of a file, which is read again only if it has changed: a run may have a million rows."""
        found = path.stat()
        stamp = (found.st_mtime_ns, found.st_size)
        if self._extents.get(path, (None,))[0] != stamp:
            self._extents[path] = (stamp, extent_of(path))
        return self._extents[path][1]

    def _next_number(self) -> int:
        return 1 + max((self._extent(path).number for path in self._files()), default=0)

    def _cut(self, stays: Callable[[Row], bool], paths: Sequence[Path]) -> None:
        """Remove rows from the files ``paths``, except for that of the open run."""
        open_file = None if self._run is None else Path(self._run.settings.sync_file)
        for path in paths:
            if path != open_file and not all(stays(row) for row in rows_of(path)):
                cut(path, stays)

    def _files(self) -> Sequence[Path]:
        return sorted(self._folder.glob(f"*run-*/run-{self._description['run_id']}.wandb"), key=_start)


def _start(path: Path) -> tuple[str, str]:
    """Return the time in the name of a file's folder: ``[offline-]run-TIME-ID[-NUMBER]``."""
    name = path.parent.name.removeprefix("offline-")
    return name[:20], name


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


if __name__ == "__main__":
    os.environ |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    serve(WandbRun(), _SECONDS_TO_END)
