"""The runs of a live page, refreshed in a thread as long as someone looks at them."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.application.handlers.control_files import SAVE, STOP
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.run_reading.run_state import refusal_of
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.domain.errors import StateError
from holdfast.domain.run_end import LifecycleState
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_BETWEEN_SCANS = 3.0
_SHARE_OF_SCANS = 20
_DEEPEST = 4
_UNKNOWN = (
    *("id", "phase", "created", "last_sign", "first_step", "tokens", "share", "tokens_per_second", "time_left", "loss"),
    *("eval_loss", "best_eval_loss", "best", "memory_bytes", "memory_limit", "device", "parameters", "ranks"),
)
_NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(_UNKNOWN),
    **dict.fromkeys(("step", "records", "generation", "notes", "samples", "checkpoints", "rejected"), 0),
    **dict.fromkeys(("data", "asked", "metrics"), ()),
    "state": "unreadable",
    "loaded": 1.0,
    "budget": {"steps": None, "tokens": None},
    "goodput": {"share": 0.0, "seconds": {}, "starts": 0},
}
"""The summary of a run of which nothing can be shown."""
_log = logging.getLogger(__name__)


@final
class RunBoard:
    """The runs in ``folders``; a folder that holds run folders stands for all that are in it, later ones included.

    A run keeps its place in ``views``, to which new ones are added. ``epoch`` differs for each board, and ``version``
    grows with each change that was found. Raises ``StateError`` if there is no run.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.views: list[RunView] = []
        self.epoch = secrets.token_hex(4)
        self.version = 0
        self._lock = threading.Lock()
        self._scanning = threading.Lock()
        self._logged: set[str] = set()
        self._folders = folders
        self._next_scan = 0.0
        self._scan()
        self._watchers = 0
        self._is_wanted = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep the runs fresh within the block."""
        with self._lock:
            self._watchers += 1
            self._is_wanted.set()
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1
                if self._watchers == 0 and not self._is_closed.is_set():
                    self._is_wanted.clear()

    def state(self) -> dict[str, Any]:
        """Return the state of all runs as plain data."""
        return {
            "epoch": self.epoch,
            "version": self.version,
            "runs": [{"number": number} | self._summary_of(view) for number, view in enumerate(self.views)],
        }

    def look(self) -> bool:
        """Read what is new in all runs; return whether there was any, or more waits."""
        changed = [self._scan(), *(view.refresh() for view in self.views)]
        if any(changed):
            self._count_change()
        return any(changed)

    def ask(self, number: int, name: str) -> list[str]:
        """Create the control file ``name``, SAVE or STOP, for a run that trains; return those that are there.

        Raises ``StateError`` if no process trains the run or the file cannot be created.
        """
        view = self.views[number]
        view.refresh()
        summary = view.summary()
        if not LifecycleState(summary["state"]).is_active:
            msg = f"no process trains {view.name} now: it is {summary['state']}, so there is nothing to ask"
            raise StateError(msg)
        try:
            (view.folder / name).touch()
        except OSError as error:
            msg = f"{view.folder / name} cannot be created: {error.strerror}"
            raise StateError(msg) from error
        self._count_change()
        return [each for each in (SAVE, STOP) if (view.folder / each).exists()]

    def close(self) -> None:
        """End the thread and close the files."""
        with self._lock:
            self._is_closed.set()
            self._is_wanted.set()
        self._thread.join(2.0)
        for view in self.views:
            view.close()

    def _summary_of(self, view: RunView) -> dict[str, Any]:
        """Return the summary of a run; one whose files hold other values than a run writes does not hide the others."""
        try:
            return view.summary()
        except Exception as error:  # noqa: BLE001  any value may be in a file
            problem = f"{view.folder} cannot be read: {describe(error)}"
            self._log_once(problem)
            return {**_NOTHING, "name": view.name, "path": str(view.folder), "problem": problem}

    def _log_once(self, problem: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            _log.error(problem)

    def _scan(self) -> bool:
        """Add runs that were not there before, if the last look for them was long ago; return whether there are any."""
        if not self._scanning.acquire(blocking=False):
            return False
        try:
            began = time.monotonic()
            if began < self._next_scan:
                return False
            known = {view.folder for view in self.views}
            for folder in self._folders:
                with suppress(*((OSError, StateError) if known else ())):  # such as a run that was removed just now
                    new = [run for run in _runs_in(folder) if run not in {view.folder for view in self.views}]
                    begun = [run for run in new if run == folder or not _is_refused(run)]
                    self.views += map(RunView, begun or ([] if self.views else new))
            for view, name in zip(self.views, _names_of([view.folder for view in self.views]), strict=True):
                view.name = name
            now = time.monotonic()
            self._next_scan = now + max(_SECONDS_BETWEEN_SCANS, _SHARE_OF_SCANS * (now - began))
            return len(self.views) > len(known)
        finally:
            self._scanning.release()

    def _count_change(self) -> None:
        with self._lock:
            self.version += 1

    def _work(self) -> None:
        while not self._is_closed.is_set():
            self._is_wanted.wait()
            try:
                is_loading = self.look() and any(view.summary()["loaded"] < 1.0 for view in self.views)
            except Exception as error:  # noqa: BLE001  the page shows what it has, and tries again
                self._log_once(f"the runs cannot be read: {describe(error)}")
                is_loading = False
            self._is_closed.wait(0.01 if is_loading else _SECONDS_BETWEEN_LOOKS)


def _is_refused(folder: Path) -> bool:
    """Return whether the first start of the run in ``folder`` was refused, so that there is nothing to watch."""
    try:
        return RunLayout(folder).record.exists() and refusal_of(folder, read_record(folder)) is not None
    except (OSError, StateError):
        return False


def _runs_in(folder: Path, depth: int = _DEEPEST) -> Iterator[Path]:
    """Yield ``folder`` if it is a run or holds no other folder of one, else the runs in it, sorted by name."""
    layout = RunLayout(folder)
    if layout.holds_run or layout.is_unwritten or depth == 0:
        yield folder
        return
    runs = [each for each in _folders_in(folder) if not each.name.startswith(".") and _holds_run(each, depth - 1)]
    if not runs:
        yield folder  # the error names it
    for each in runs:
        yield from _runs_in(each, depth - 1)


def _holds_run(folder: Path, depth: int) -> bool:
    try:
        if RunLayout(folder).holds_run:
            return True
    except OSError:  # a folder of another user
        return False
    if depth == 0 or folder.is_symlink():
        return False
    return any(_holds_run(each, depth - 1) for each in _folders_in(folder))


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in ``folder``, sorted; none if it cannot be read."""
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir())
    except OSError:
        return []


def _names_of(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path, with as many parts before it as tell the runs apart."""
    paths = [Path(os.path.realpath(folder)).parts for folder in folders]  # also of a link that leads to itself
    length = 1
    while len({path[-length:] for path in paths}) < len(paths) and length < max(map(len, paths)):
        length += 1
    return ["/".join(path[-length:]) for path in paths]
