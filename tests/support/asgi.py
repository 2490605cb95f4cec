"""Requests to an ASGI application in this process, without a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOST = "127.0.0.1:8473"
POSTED = {"x-holdfast": "1", "content-type": "application/json"}


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(
    app: Any,
    path: str = "/",
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    client: str = "127.0.0.1",
    leaves: Callable[[bytes], bool] = lambda _: False,
) -> Answer:
    """Return the answer to a GET, or to a POST of ``body``; the client leaves once ``leaves`` of what has come."""
    given = {"host": HOST, **({} if body is None else POSTED), **(headers or {})}
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": (client, 40000),
        "server": ("127.0.0.1", 8473),
    }
    left, is_sent, come, start = asyncio.Event(), False, bytearray(), {}

    async def receive() -> dict[str, Any]:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body or b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        start.update(message if message["type"] == "http.response.start" else {})
        come.extend(message.get("body", b""))
        if leaves(bytes(come)):
            left.set()
        await asyncio.sleep(0)

    await app(scope, receive, send)
    found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], found, bytes(come))
