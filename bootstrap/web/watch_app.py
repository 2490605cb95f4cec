"""The live page of runs: the page, its data as JSON, a stream of changes, and two buttons."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.application.handlers.control_files import SAVE, STOP
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.run_reading.run_state import refusal_of
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.bootstrap.web.serve import Access
from holdfast.domain.errors import StateError
from holdfast.domain.run_end import LifecycleState
from holdfast.domain.urls import describe
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from holdfast.bootstrap.run_reading.metric_table import Curve
    from holdfast.bootstrap.web.serve import AccessRules

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MOST_POINTS = 5000
_MOST_NOTES = 5000
_SECONDS_BETWEEN_CHANGES = 0.25
_SECONDS_BETWEEN_SIGNS = 15.0
_LARGEST_BODY = 4096
_MOST_DIGITS = 9
_LARGEST_STEP = 1 << 62


def watch_app(board: RunBoard, rules: AccessRules, *, is_read_only: bool = False) -> Starlette:
    """Return the application that shows the runs of ``board``; with ``is_read_only`` it has no buttons."""
    pages = _Pages(board, is_read_only=is_read_only)
    routes = [
        Route("/", lambda _: static_file("page.html")),
        Route("/static/{name}", lambda request: static_file(request.path_params["name"])),
        Route("/api/state", pages.state),
        Route("/api/stream", pages.stream),
        Route("/api/runs/{number}/curves", pages.curves),
        Route("/api/runs/{number}/notes", pages.notes),
        Route("/api/runs/{number}/checkpoints", pages.checkpoints),
        Route("/api/runs/{number}/settings", pages.settings),
        Route("/api/runs/{number}/samples", pages.samples),
        Route("/api/runs/{number}/save", pages.save, methods=["POST"]),
        Route("/api/runs/{number}/stop", pages.stop, methods=["POST"]),
    ]
    middleware = [Middleware(Access, rules=rules), Middleware(GZipMiddleware, minimum_size=2048, compresslevel=1)]
    handlers: dict[Any, Any] = {HTTPException: _problem}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, max_body_size=_LARGEST_BODY)


def static_file(name: str) -> Response:
    """Return the file ``name`` of the pages; raises ``HTTPException`` if there is none."""
    path = STATIC / name
    if path.suffix not in _TYPES or name not in {each.name for each in STATIC.iterdir()}:
        raise HTTPException(404, f"There is no file {name}.")
    return Response(path.read_bytes(), media_type=_TYPES[path.suffix])


def as_json(data: Any, status: int = 200) -> Response:
    """Return ``data``, which may hold arrays, as JSON; NaN and the infinities are null."""
    return Response(_encoded(data), status, media_type="application/json")


def _encoded(data: Any) -> bytes:
    try:
        return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # a path whose bytes are no UTF-8, or a number beyond 64 bits
        return json.dumps(data).encode()


class _Pages:
    """The answers; those that are no coroutines run in a thread each."""

    def __init__(self, board: RunBoard, *, is_read_only: bool) -> None:
        self._board = board
        self._is_read_only = is_read_only
        self._build = __version__

    def state(self, _: Request) -> Response:
        self._board.look()
        return as_json(self._state())

    async def stream(self, request: Request) -> Response:
        headers = {"x-accel-buffering": "no"}
        changes = self._changes(request.headers.get("last-event-id"))
        return StreamingResponse(changes, media_type="text/event-stream", headers=headers)

    def curves(self, request: Request) -> Response:
        """Answer with curves by name.

        A page that has points up to the step ``since``, of ``bucket`` steps each and of the same ``generation``, gets
        the points from ``first`` on, which replace its last ones.
        """
        view, asked = self._view(request), request.query_params
        names = [name for name in asked.get("names", "").split(",") if name]
        first, last = _whole(request, "first"), _whole(request, "last")
        width = max(2, min(_MOST_POINTS, _whole(request, "width") or 1000))
        generation, bucket = view.generation, view.bucket(first, last, width)
        since = _whole(request, "since")
        if (_whole(request, "bucket"), _whole(request, "generation")) == (bucket, generation) and since is not None:
            first = since // bucket * bucket
        found = view.curves(names, first, last, width=width, bucket=bucket)
        curves = {name: _points(curve) for name, curve in found.items()}
        return as_json({"generation": generation, "bucket": bucket, "first": first, "curves": curves})

    def notes(self, request: Request) -> Response:
        """Answer with the events from number ``from`` on, and the steps at which records were rejected."""
        view, start = self._view(request), _whole(request, "from") or 0
        found = [note.to_json() for note in view.notes[max(start, len(view.notes) - _MOST_NOTES) :]]
        return as_json({"total": len(view.notes), "notes": found, "rejections": view.rejections()[-500:]})

    def checkpoints(self, request: Request) -> Response:
        return as_json(self._view(request).checkpoints())

    def settings(self, request: Request) -> Response:
        return as_json(self._view(request).settings())

    def samples(self, request: Request) -> Response:
        return as_json(self._view(request).samples())

    def save(self, request: Request) -> Response:
        return self._ask(request, SAVE)

    def stop(self, request: Request) -> Response:
        return self._ask(request, STOP)

    def _ask(self, request: Request, name: str) -> Response:
        if self._is_read_only:
            raise HTTPException(403, "This page was started with --read-only.")
        number = self._number(request)
        if request.query_params.get("epoch", self._board.epoch) != self._board.epoch:
            raise HTTPException(409, "The server of this page was started again: look at its runs, and ask again.")
        try:
            asked = self._board.ask(number, name)
        except StateError as error:
            raise HTTPException(409, str(error)) from error
        return as_json({"asked": asked}, 202)

    def _state(self) -> dict[str, Any]:
        return self._board.state() | {"build": self._build, "read_only": self._is_read_only}

    def _view(self, request: Request) -> RunView:
        return self._board.views[self._number(request)]

    def _number(self, request: Request) -> int:
        """Return the number of the run that is asked for; raises ``HTTPException`` if there is none."""
        text = request.path_params["number"]
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS) or int(text) >= len(
            self._board.views
        ):
            raise HTTPException(404, f"There is no run {text[:_MOST_DIGITS]}.")
        return int(text)

    async def _changes(self, last_id: str | None) -> AsyncIterator[bytes]:
        """Yield the state of all runs whenever it has changed since the event ``last_id``, and a sign of life."""
        seen, waited = last_id, 0.0
        yield b"retry: 1000\n\n"
        with self._board.watched():
            await asyncio.to_thread(self._board.look)
            while True:
                number = f"{self._board.epoch}-{self._board.version}"
                if number != seen:
                    state = await asyncio.to_thread(self._state)
                    seen, waited = number, 0.0
                    yield b"id: %b\nevent: state\ndata: %b\n\n" % (number.encode(), _encoded(state))
                elif waited >= _SECONDS_BETWEEN_SIGNS:
                    waited = 0.0
                    yield b": \n\n"
                await asyncio.sleep(_SECONDS_BETWEEN_CHANGES)
                waited += _SECONDS_BETWEEN_CHANGES


def _points(curve: Curve) -> dict[str, Any]:
    points = {"x": curve.step, "y": curve.value.astype(np.float32)}
    if curve.low is not None and curve.high is not None:
        points |= {"low": curve.low.astype(np.float32), "high": curve.high.astype(np.float32)}
    return points


def _whole(request: Request, name: str) -> int | None:
    """Return a whole number of the query, None without it."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return max(-_LARGEST_STEP, min(_LARGEST_STEP, int(float(text))))
    except (ValueError, OverflowError) as error:
        raise HTTPException(400, f"{name} is not a number.") from error


def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return as_json({"error": error.detail}, error.status_code)


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
