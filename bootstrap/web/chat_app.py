"""The web application of the chat page."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, final

from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typing_extensions import override

from holdfast.application.training.generate import ReplyEnd
from holdfast.bootstrap.operations.chat_models import ChatRequest
from holdfast.bootstrap.web.serve import Access
from holdfast.domain.errors import TrainingError
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole
from holdfast.domain.training.text_generation import Sampling

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from holdfast.bootstrap.operations.chat_models import ChatModel
    from holdfast.bootstrap.web.serve import AccessRules, App

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


LARGEST = 1 << 20
"""The largest body of a request in bytes."""
_MEMBERS = {"model", "text", "messages", "sampling"}


class RequestInvalid(Exception):
    """A request that no page of ours sends; its message is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class NumberedRequest:
    """The number of a model, from 0, and the request to it."""

    model: int
    request: ChatRequest


def request_from(body: bytes, num_models: int) -> NumberedRequest:
    """Return the request in ``body``, JSON in UTF-8; raises ``RequestInvalid``.

    ``model`` is the number of one of ``num_models``; either ``text`` is a string, or ``messages`` is a list of objects
    with ``role`` and ``text``; ``sampling`` has members of ``Sampling``, each of which may be left out.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        msg = "the request is not JSON in UTF-8"
        raise RequestInvalid(msg) from error
    if not isinstance(given, dict) or not given.keys() <= _MEMBERS or ("text" in given) is ("messages" in given):
        msg = "the request needs a model, a sampling, and either a text or messages"
        raise RequestInvalid(msg)
    model = _whole(given, "model", 0, num_models - 1)
    sampling = _sampling(given.get("sampling", {}))
    if "text" in given:
        return NumberedRequest(model, ChatRequest(sampling, text=_text(given["text"])))
    return NumberedRequest(model, ChatRequest(sampling, messages=_messages(given["messages"])))


def _messages(given: Any) -> Sequence[ChatMessage]:
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        msg = "messages is a list of objects with role and text, and not empty"
        raise RequestInvalid(msg)
    roles = [MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT]
    if strange := [each.get("role") for each in given if each.get("role") not in roles]:
        msg = f"the role of a message is {', '.join(roles)}, not {strange[0]!r:.40}"
        raise RequestInvalid(msg)
    return [ChatMessage(MessageRole(each["role"]), _text(each.get("text"))) for each in given]


def _sampling(given: Any) -> Sampling:
    usual = Sampling()
    known = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    if not isinstance(given, dict) or not given.keys() <= set(known):
        msg = f"sampling has the members {', '.join(known)}, and no other"
        raise RequestInvalid(msg)
    return Sampling(
        max_new_tokens=_whole(given, "max_new_tokens", 1, 2**31 - 1, usual.max_new_tokens),
        temperature=_number(given, "temperature", 0.0, 100.0, usual.temperature),
        top_k=_whole(given, "top_k", 0, 2**31 - 1, usual.top_k),
        top_p=_number(given, "top_p", 1e-6, 1.0, usual.top_p),
        seed=_whole(given, "seed", 0, 2**31 - 1, usual.seed),
    )


def _whole(given: Mapping[str, Any], name: str, least: int, most: int, usual: int | None = None) -> int:
    value = given.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        msg = f"{name} is a whole number from {least} to {most}"
        raise RequestInvalid(msg)
    return value


def _number(given: Mapping[str, Any], name: str, least: float, most: float, usual: float) -> float:
    value = given.get(name, usual)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        msg = f"{name} is a number from {least:g} to {most:g}"
        raise RequestInvalid(msg)
    assert math.isfinite(value)  # NaN lies in no range
    return float(value)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        msg = "a text is a string"
        raise RequestInvalid(msg)
    return given.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text
