"""The server of a page in this process: its address, its start and its end."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from uvicorn import Server

    from holdfast.bootstrap.web.access import App

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
