"""The server of a page in this process: its address, its start and its end."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded, is_loopback

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping

    from uvicorn import Server

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

PORT = 8473
"""The port of a page unless another is asked for or a program has it already."""
_ALL_ADDRESSES = {"0.0.0.0", "::"}  # noqa: S104  compared, not bound
SECONDS_TO_ASK = 10.0
_STATES_OF_ASKING = {"IDLE", "SEND_BODY"}  # of a client, as h11 names them: its request is not whole
_SECONDS_TO_START = 20.0


def check_packages(user: str) -> None:
    """Raise ``ConfigurationError`` without the extra ``page``; ``user``, such as `the command "watch"`, needs it."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        msg = f'{user} needs another package: pip install "holdfast-lm[page]"'
        raise ConfigurationError(msg)


def bind(host: str, port: int | None) -> socket.socket:
    """Return a bound TCP socket; ``port`` 0 is any free port, and None is 8473, or any free port if that is taken.

    Raises ``ConfigurationError`` if the host is none of this machine or the port is taken.
    """
    if port is None:
        try:
            return _bind(host, PORT)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigurationError(_why(host, PORT, error)) from error
            return bind(host, 0)
    try:
        return _bind(host, port)
    except OSError as error:
        raise ConfigurationError(_why(host, port, error)) from error


def address_of(bound: socket.socket, token: str | None = None) -> str:
    """Return the link to the page at ``bound``, with its token."""
    host, port = bound.getsockname()[:2]
    name = socket.gethostname() if host in _ALL_ADDRESSES else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + ("" if token is None else f"?{urlencode({'token': token})}")


def serve(app: App, bound: socket.socket) -> None:
    """Answer requests at ``bound`` until Ctrl-C; open streams end with it. SIGTERM ends the process as usual."""
    try:
        _server(app).run(sockets=[bound])
    except KeyboardInterrupt:
        return
    finally:
        bound.close()


@contextmanager
def serving(app: App, bound: socket.socket, *, stopping: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Answer requests at ``bound`` in another thread within the block; give the address without a token.

    ``stopping`` is called before the server ends. Raises ``TimeoutError`` if the server does not start.
    """
    server = _server(app)
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]), name="page", daemon=True)
    address = address_of(bound)
    thread.start()
    try:
        _wait_for(server, thread)
        yield address
    finally:
        stopping()
        server.should_exit = True
        thread.join(_SECONDS_TO_START)
        bound.close()


def _server(app: App) -> Server:
    from uvicorn import Config, Server

    options: dict[str, Any] = {"log_config": None, "log_level": "critical", "access_log": False}
    options |= {"server_header": False, "date_header": False, "proxy_headers": False}  # headers name no other client
    return Server(Config(app, http=_protocol(), ws="none", loop="asyncio", timeout_graceful_shutdown=0, **options))


def _protocol() -> type[asyncio.Protocol]:
    """Return the protocol of a connection, which ends if its request is not whole within 10 to 20 seconds."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedRequestProtocol(H11Protocol):
        """A connection that no client can keep open by half a request."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._look(())

        def _look(self, before: tuple[object, ...]) -> None:
            if self.transport.is_closing():
                return
            now = (self.conn.their_state, self.cycle)
            if now == before and repr(now[0]) in _STATES_OF_ASKING:
                self.transport.close()
            else:
                self.loop.call_later(SECONDS_TO_ASK, self._look, now)

    return BoundedRequestProtocol


def _wait_for(server: Server, thread: threading.Thread) -> None:
    ended = threading.Event()
    for _ in range(int(_SECONDS_TO_START / 0.02)):
        if server.started:
            return
        if not thread.is_alive():
            break
        ended.wait(0.02)
    msg = f"the server did not start within {_SECONDS_TO_START:.0f} s"
    raise TimeoutError(msg)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:  # such as two dots in a row
        raise socket.gaierror(socket.EAI_NONAME, "it is not the name of a machine") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError:
        bound.close()
        raise
    bound.set_inheritable(False)
    return bound


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another program has port {port} of {host}: choose another port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is reserved for the system: choose a port from 1024 on, or 0 for any free one"
    return f"the page cannot be served at {host}, port {port}: {error.strerror}"


TOKEN = "token"  # noqa: S105  the name of a parameter
CONFIRMATION = "x-holdfast"
"""The header of every POST; the page of another site cannot send it, as its browser would ask for permission first."""
_SHORTEST_TOKEN = 16
_METHODS = ("GET", "HEAD", "POST")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


_FORM_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>Token needed</title></head><body>
<h1>This page needs its token</h1>
<p>Open the whole link that was printed at its start, or enter the token.</p>
<form action="/" method="get"><label>Token <input type="password" name="token" autocomplete="off" autofocus></label>
<button>Open</button></form></body></html>
"""


class RefusedRequest(Exception):
    """The reason, a sentence for a person, why a request is answered with ``status`` and nothing else."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@final
@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of a page; without a ``token`` only programs on this machine get an answer."""

    token: str | None = field(default=None, repr=False)
    cookie: str = field(init=False, repr=False)
    session: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Derive the name and the value of the cookie, which differ for each token and do not contain it."""
        key = (self.token or "").encode()
        object.__setattr__(self, "cookie", f"holdfast-{hashlib.sha256(b'name' + key).hexdigest()[:12]}")
        object.__setattr__(self, "session", hmac.new(key, b"session", hashlib.sha256).hexdigest())

    def check(self, scope: Scope) -> None:
        """Raise ``RefusedRequest`` unless the request in the ASGI ``scope`` is answered, given its token."""
        headers = _headers_of(scope)
        if scope["method"] not in _METHODS:
            raise RefusedRequest(405, "This page answers GET, HEAD and POST only.")
        if self.token is None:
            client = scope.get("client")
            if client is not None and not is_loopback(client[0]):
                raise RefusedRequest(403, "Without a token this page answers programs on its own machine only.")
            if not is_loopback(_name_in(headers.get("host", ""))):
                raise RefusedRequest(403, "Without a token this page is called by localhost, 127.0.0.1 or [::1] only.")
        _check_site(scope, headers)

    def has_token(self, scope: Scope) -> bool:
        """Return whether the request carries the token, as a cookie or in ``Authorization: Bearer TOKEN``."""
        if self.token is None:
            return True
        headers = _headers_of(scope)
        kind, _, given = headers.get("authorization", "").partition(" ")
        text = given.strip().encode("latin-1").decode("utf-8", "replace")  # headers are bytes
        if kind.lower() == "bearer" and _is_same(text, self.token):
            return True
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and _is_same(morsel.value, self.session)

    def is_link(self, scope: Scope) -> bool:
        """Return whether the request is the first one, by a link with ``?token=TOKEN``."""
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get(TOKEN)
        return self.token is not None and given is not None and _is_same(given, self.token)


@final
class Access:
    """ASGI middleware that answers requests by ``rules`` and adds the headers that keep other sites out.

    A link with ``?token=TOKEN`` is answered by a cookie and a redirect to the same address without the token. No
    WebSocket is accepted.
    """

    def __init__(self, app: App, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._rules.check(scope)
        except RefusedRequest as refusal:
            await _respond(send, refusal.status, f"{refusal.reason}\n", {"content-type": "text/plain; charset=utf-8"})
            return
        if scope["method"] == "GET" and self._rules.is_link(scope):
            await self._accept_token(scope, send)
            return
        if not self._rules.has_token(scope):
            policy = _HEADERS["content-security-policy"].replace("form-action 'none'", "form-action 'self'")
            headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": policy}
            await _respond(send, 401, _FORM_PAGE, headers)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *(pair for pair in extra if pair[0] not in given)]
            await send(message)

        await self._app(scope, receive, send_safely)

    async def _accept_token(self, scope: Scope, send: Send) -> None:
        rest = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] != TOKEN]
        # a path with two slashes at its start would name another host
        path = "/" + scope.get("raw_path", b"/").decode("latin-1").partition("?")[0].lstrip("/\\")
        cookie = f"{self._rules.cookie}={self._rules.session}; Path=/; HttpOnly; SameSite=Lax"
        where = path + (f"?{urlencode(rest)}" if rest else "")
        await _respond(send, 303, "", {"location": where, "set-cookie": cookie})


def token_from(place: str | None, *, setting: str) -> str | None:
    """Return the token in ``place``: ``env:NAME``, ``file:PATH``, or ``new`` for a random one; None without a place.

    Raises ``ConfigurationError``, which names ``setting``, if there is no token or it has fewer than 16 characters.
    """
    if place is None:
        return None
    if place == "new":
        return secrets.token_urlsafe(24)
    kind, _, where = place.partition(":")
    if kind not in ("env", "file") or not where:
        msg = f"{setting} is new, env:NAME or file:PATH: a token itself would be visible to other users of the machine"
        raise ConfigurationError(msg)
    try:
        token = (os.environb[where.encode()].decode() if kind == "env" else _text_in(where)).strip()
    except (OSError, KeyError, ValueError, RuntimeError) as error:  # not UTF-8, or ``~`` of a user that is not there
        what = "the variable" if kind == "env" else "the file"
        msg = f"{setting} names {what} {where}, which cannot be read"
        raise ConfigurationError(msg) from error
    if len(token) < _SHORTEST_TOKEN:
        msg = f"the token that {setting} names has {len(token)} characters: it needs {_SHORTEST_TOKEN} at least"
        raise ConfigurationError(msg)
    return token


def _text_in(file: str) -> str:
    return expanded(file).read_text("utf-8")


def check_host(host: str, token: str | None, *, setting: str) -> None:
    """Raise ``ConfigurationError``, which names ``setting``, if other machines could reach ``host`` without a token."""
    if token is None and not is_loopback(host):
        msg = f"other machines can reach {host}: add {setting}, such as {setting} new, or leave the host at 127.0.0.1"
        raise ConfigurationError(msg)


def _check_site(scope: Scope, headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site, or of another port of this machine, asks the browser to send."""
    site, is_post = headers.get("sec-fetch-site", "none"), scope["method"] == "POST"
    is_visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if site not in ("same-origin", "none") and (is_post or not is_visit):
        raise RefusedRequest(403, "Another site may link to this page, and do nothing else with it.")
    origin = headers.get("origin")
    if origin is not None and _place_in(origin) != headers.get("host", "").lower():
        raise RefusedRequest(403, "The request comes from another site.")
    if is_post and headers.get(CONFIRMATION) != "1":
        raise RefusedRequest(403, f"A POST needs the header {CONFIRMATION}: 1.")


def _headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers with names in lower case; of equal ones the last, cookies joined."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}; {value}" if name == "cookie" and name in found else value
    return found


def _name_in(host: str) -> str:
    """Return the name in a ``Host`` header, without brackets and port; empty if it is not one."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place_in(origin: str) -> str:
    """Return host and port of an ``Origin`` header; empty for ``null`` and anything else without a host."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


async def _respond(send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = text.encode()
    pairs = {**_HEADERS, **headers, "content-length": str(len(body))}
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
