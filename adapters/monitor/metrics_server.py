"""The HTTP server of the endpoint for Prometheus."""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import TYPE_CHECKING, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from typing_extensions import override

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

_SECONDS_BETWEEN_LOOKS = 0.05  # the library's server, with 0.5, would hold up the end of a run
_PATIENCE_SECONDS = 10.0


@final
class MetricsServer:
    """Serves the metrics of ``registry`` at ``host`` and ``port`` (0 is any free one) in threads, until ``close``.

    Raises ``OSError`` if the port cannot be used.
    """

    def __init__(self, host: str, port: int, registry: Collector) -> None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = addresses[0]
        kind = _ServerOfIpv6 if family == socket.AF_INET6 else _Server
        self._server = kind((str(address[0]), port), _QuietHandler)
        self._server.set_app(make_wsgi_app(registry))
        self.port = self._server.server_port
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(_SECONDS_BETWEEN_LOOKS,), name="prometheus", daemon=True).start()

    def close(self) -> None:
        """Release the port."""
        self._server.shutdown()
        self._server.server_close()


class _QuietHandler(WSGIRequestHandler):
    timeout = _PATIENCE_SECONDS  # for a client that connects and sends nothing

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    @override
    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()  # unlike in the library's server, without a question to a name server


class _ServerOfIpv6(_Server):
    address_family = socket.AF_INET6
