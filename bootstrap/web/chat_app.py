"""The web application of the chat page."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, final

from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typing_extensions import override

from holdfast.application.training.reply import ReplyEnd
from holdfast.bootstrap.web.access import Access
from holdfast.bootstrap.web.chat_request import LARGEST, RequestInvalid, request_from
from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from holdfast.bootstrap.operations.chat_models import ChatModel, ChatRequest
    from holdfast.bootstrap.web.access import AccessRules, App
    from holdfast.domain.training.text_generation import Sampling

    Tell = Callable[[Mapping[str, Any] | None], object]

_STATIC = Path(__file__).with_name("static")
_FILES = ("chat.js", "chat.css", "theme.css")
_log = logging.getLogger(__name__)


def chat_app(models: Sequence[ChatModel], usual: Sampling, rules: AccessRules, *, plain: bool = False) -> App:
    """Return the ASGI application that lets a person talk to ``models``.

    ``GET /models`` describes them and the ``usual`` sampling. ``POST /reply`` takes a request as ``request_from``
    describes and answers with one JSON object a line: ``waiting``, ``start``, ``token`` for each id, and ``end`` or
    ``error``. A request that the browser breaks off ends at the next token. With ``plain`` no chat template is offered.
    """
    queues = [_ReplyQueue(model) for model in models]
    about = {
        "models": [_described(model, plain=plain) for model in models],
        "sampling": {
            "temperature": usual.temperature,
            "top_k": usual.top_k,
            "top_p": usual.top_p,
            "max_new_tokens": usual.max_new_tokens,
            "seed": usual.seed,
        },
    }

    async def describe(_: Request) -> Response:
        return JSONResponse(about)

    async def reply(request: Request) -> Response:
        try:
            asked = request_from(await _body_of(request), len(queues))
        except RequestInvalid as error:
            return JSONResponse({"message": str(error)}, status_code=400)
        return _LinesResponse(queues[asked.model].lines(asked.request))

    files = [Route("/", _file("chat.html")), *(Route(f"/static/{name}", _file(name)) for name in _FILES)]
    routes = [*files, Route("/models", describe), Route("/reply", reply, methods=["POST"])]
    return Access(Starlette(routes=routes), rules)


@final
class _LinesResponse(StreamingResponse):
    """Streams ``lines``, and closes them at once if the client leaves."""

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, media_type="application/x-ndjson", headers={"x-accel-buffering": "no"})
        self._lines = lines

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()


@final
class _ReplyQueue:
    """A model with the thread that computes its replies, one after another."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reply")
        self._num_asked = 0

    async def lines(self, request: ChatRequest) -> AsyncGenerator[bytes, None]:
        """Yield the events of one reply, each as a line of JSON; leaving early stops the reply."""
        loop, stop = asyncio.get_running_loop(), Event()
        events: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()

        def tell(event: Mapping[str, Any] | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(events.put_nowait, event)

        if self._num_asked:
            events.put_nowait({"kind": "waiting", "ahead": self._num_asked})
        self._num_asked += 1
        future = self._thread.submit(self._reply, request, tell, stop)
        future.add_done_callback(lambda _: self._count_end(loop))
        try:
            while (event := await events.get()) is not None:
                yield json.dumps(event).encode() + b"\n"
        finally:
            stop.set()
            future.cancel()

    def _count_end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count the reply as ended, in the thread of ``loop``."""

        def count() -> None:
            self._num_asked -= 1

        if not loop.is_closed():
            loop.call_soon_threadsafe(count)

    def _reply(self, request: ChatRequest, tell: Tell, stop: Event) -> None:
        try:
            began = time.monotonic()
            prompt = self._model.prompt_of(request)
            tell({"kind": "start", "prompt_tokens": len(prompt.ids), "note": prompt.note})

            def show(token: int | None, text: str) -> None:
                tell({"kind": "token", "id": token, "text": text})

            end = self._model.reply(prompt, show, stop.is_set)
            if end is not ReplyEnd.STOPPED:
                tell({"kind": "end", "reason": end, "seconds": round(time.monotonic() - began, 3)})
        except TrainingError as error:
            tell({"kind": "error", "message": str(error)})
        except Exception:  # noqa: BLE001  told to the page, and the server goes on
            _log.exception("a reply failed")
            tell({"kind": "error", "message": "the reply failed; the terminal of the server shows why"})
        finally:
            tell(None)


def _described(model: ChatModel, *, plain: bool) -> Mapping[str, Any]:
    hardware = model.trained.trainable.hardware
    return {
        "name": model.name,
        "location": model.trained.location,
        "parameters": hardware.num_parameters,
        "device": hardware.device,
        "precision": hardware.precision,
        "positions": model.trained.trainable.num_positions,
        "has_template": model.has_template and not plain,
    }


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def respond(_: Request) -> Response:
        return FileResponse(_STATIC / name)

    return respond


async def _body_of(request: Request) -> bytes:
    """Return the body; raises ``RequestInvalid`` if it is larger than ``LARGEST``."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            msg = f"the request is larger than {LARGEST} bytes"
            raise RequestInvalid(msg)
    return body
