"""A real HTTP server that serves files, or stands before another server, and fails as it is told to."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of an answer: one of these, or an answer of ``status`` without content."""

    status: int = 0
    resets: bool = False
    stalls: bool = False
    truncates: bool = False
    shortens: bool = False


RESET, STALL = Fault(resets=True), Fault(stalls=True)
TRUNCATE = Fault(truncates=True)  # less than Content-Length says
SHORTEN = Fault(shortens=True)  # less than was asked for, and Content-Length says so


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes | memoryview


@dataclass
class FaultyServer:
    """Serves ``files`` by path, or what ``upstream`` (host, port) serves.

    Each GET takes the next of ``faults``; ``always`` is what happens when there are none. ``latency`` in seconds comes
    before each answer. ``ranges`` false makes it deaf to Range headers. ``requests`` and
    ``headers`` are the GETs that came; none is answered while ``closed_gate`` is held.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    upstream: tuple[str, int] | None = None
    faults: deque[Fault] = field(default_factory=deque)
    always: Fault | None = None
    latency: float = 0.0
    ranges: bool = True
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)
    closed_gate: threading.Lock = field(default_factory=threading.Lock)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def behave(self) -> None:
        """Forget all faults and requests, when those that still stall are over."""
        self.faults.clear()
        self.always, self.latency, self.ranges = None, 0.0, True
        self.released.set()
        while self.at_once:
            time.sleep(0.001)
        self.released.clear()
        self.requests.clear()
        self.headers.clear()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        with self.lock:
            self.at_once += 1
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1

    def next_fault(self) -> Fault | None:
        try:
            return self.faults.popleft()
        except IndexError:
            return self.always

    def answer(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        return self._forward(handler, body) if self.upstream else self._serve(handler)

    def _serve(self, handler: BaseHTTPRequestHandler) -> Answer:
        content = self.files.get(urlsplit(handler.path).path)
        if content is None:
            return Answer(404, {}, b"")
        etag = f'"{hash(content):x}"'  # bytes remember their hash
        headers = {"ETag": etag, "Accept-Ranges": "bytes" if self.ranges else "none"}
        if handler.headers.get("If-Match", etag) != etag:
            return Answer(412, headers, b"")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if not asked or not self.ranges:
            return Answer(200, headers, content)
        begin, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        headers["Content-Range"] = f"bytes {begin}-{last}/{len(content)}"
        return Answer(206, headers, memoryview(content)[begin : last + 1])

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        with contextlib.closing(http.client.HTTPConnection(*self.upstream, timeout=30)) as connection:
            connection.request(handler.command, handler.path, body or None, dict(handler.headers.items()))
            response = connection.getresponse()
            headers = {key: value for key, value in response.getheaders() if key.lower() not in _HOP}
            if handler.command == "HEAD":
                headers["Content-Length"] = response.getheader("Content-Length", "0")
            return Answer(response.status, headers, response.read())


@contextlib.contextmanager
def faulty_server(**options) -> Iterator[FaultyServer]:
    """Run a ``FaultyServer`` on a free port of this machine."""
    script = FaultyServer(**options)
    server = ListeningServer(("127.0.0.1", 0), FaultyHandler)
    server.script = script
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        script.released.set()
        server.shutdown()
        thread.join()
        server.drop_connections()
        server.server_close()


class ListeningServer(ThreadingHTTPServer):
    """Listens for requests, and can drop all connections."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._sockets: set[socket.socket] = set()

    def process_request(self, request, client_address) -> None:
        self._sockets.add(request)
        super().process_request(request, client_address)

    def drop_connections(self) -> None:
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address) -> None:
        """Say nothing: clients that were failed on purpose hang up."""


class FaultyHandler(BaseHTTPRequestHandler):
    """Answers the requests of a client as the server's ``script`` says."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def script(self) -> FaultyServer:
        return self.server.script

    def log_message(self, *_) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(None)

    def do_GET(self) -> None:
        self.script.requests.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        self.script.headers.append(dict(self.headers.items()))
        with self.script.counting():
            self.answer(self.script.next_fault())

    def do_PUT(self) -> None:
        self.answer(None)

    do_POST = do_DELETE = do_PUT  # noqa: N815

    def answer(self, fault: Fault | None) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.script.latency)
        with self.script.closed_gate:
            pass
        if fault and (fault.stalls or fault.resets):
            if fault.stalls:
                self.script.released.wait()
            self._reset()
            return
        answer = Answer(fault.status, {}, b"") if fault and fault.status else self.script.answer(self, body)
        if fault and fault.shortens:
            answer.body = answer.body[: len(answer.body) // 2]
        self._send(answer, len(answer.body) // 2 if fault and fault.truncates else len(answer.body))

    def _send(self, answer: Answer, sent: int) -> None:
        self.send_response(answer.status)
        for key, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for begin in range(0, sent, _CHUNK):
            self.wfile.write(answer.body[begin : min(begin + _CHUNK, sent)])
        if sent < len(answer.body):
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
