"""The live page of runs: the page, its data as JSON, a stream of changes, and two buttons."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.application.handlers.control_files import SAVE, STOP
from holdfast.bootstrap.web.access import Access
from holdfast.domain.errors import StateError
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from holdfast.bootstrap.run_reading.metric_table import Curve
    from holdfast.bootstrap.run_reading.run_view import RunView
    from holdfast.bootstrap.web.access import AccessRules
    from holdfast.bootstrap.web.run_board import RunBoard

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
