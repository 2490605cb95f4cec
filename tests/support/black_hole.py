"""A server that accepts connections, reads what comes, and never answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BlackHole:
    """Listens on a free ``port`` of loopback; ``num_connections`` are those that came."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.num_connections = 0
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._server.accept()
                self.num_connections += 1
                self._connections.append(connection)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while connection.recv(1 << 16):
                pass

    def close(self) -> None:
        """Stop listening, and reset what is connected."""
        for connection in (self._server, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextlib.contextmanager
def black_hole() -> Iterator[BlackHole]:
    """Yield a server that never answers."""
    server = BlackHole()
    try:
        yield server
    finally:
        server.close()
